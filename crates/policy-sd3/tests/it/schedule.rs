//! Schedules against diffusers' scheduler and the tables that the method's papers use.

use policy_sd3::schedule::{Schedule, ScheduleError, ScheduleKind, SchedulerConfig, TimestepRounding};
use proptest::prelude::*;
use serde_json::Value;

use crate::fixture::{Fixture, root};

/// The numbers of a JSON list.
fn numbers(list: &Value) -> Vec<f64> {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|v| v.as_f64().expect("a number"))
        .collect()
}

#[track_caller]
fn assert_near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: counts differ");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs() / expected.abs().max(1.0);
        assert!(difference <= tolerance, "{what}[{i}]: {found} instead of {expected}");
    }
}

/// The table from the pipeline's own configuration equals the one that diffusers' scheduler gives in f32.
#[test]
fn schedule_parity_with_the_reference_scheduler() {
    let config = SchedulerConfig::open(&root().join("sd3/scheduler")).expect("the fixture's scheduler");
    let fixture = Fixture::read("sd3_io");
    for (steps, expected) in fixture.expected["scheduler"].as_object().expect("an object") {
        let steps: usize = steps.parse().expect("a number of steps");
        let schedule =
            Schedule::new(ScheduleKind::Diffusers, &config, steps, TimestepRounding::Exact).expect("a schedule");
        assert_eq!(schedule.steps(), steps);
        assert_near("sigma", schedule.sigmas(), &numbers(&expected["sigmas"]), 1e-7);
        assert_near("timestep", schedule.timesteps(), &numbers(&expected["timesteps"]), 1e-7);
    }
}

/// Both families of tables, in double precision, with the timesteps that the peers' programs give their networks.
#[test]
fn schedule_parity_with_both_families_of_tables() {
    let fixture = Fixture::read("sde_steps");
    let shift = fixture.inputs["shift"].as_f64().expect("a shift");
    let cases = fixture.inputs["flow"].as_array().expect("cases");
    for (case, expected) in cases.iter().zip(fixture.expected["flow"].as_array().expect("cases")) {
        let steps = case["n"].as_u64().expect("a number of steps") as usize;
        let name = case["schedule"].as_str().expect("a name");
        let schedule = named(name, steps, shift);
        assert_near(name, schedule.sigmas(), &numbers(&expected["sigmas"]), 1e-10);
        assert_near(
            name,
            schedule.timesteps(),
            &numbers(&expected["model_timesteps"]),
            1e-10,
        );
    }
}

/// The schedule that the step fixtures call `name`.
pub(crate) fn named(name: &str, steps: usize, shift: f64) -> Schedule {
    let config = SchedulerConfig {
        shift,
        ..SchedulerConfig::default()
    };
    let (kind, rounding) = match name {
        "diffusers_double_shift" => (ScheduleKind::Diffusers, TimestepRounding::Exact),
        "linspace_then_shift" => (ScheduleKind::Linspace, TimestepRounding::Truncated),
        other => panic!("the fixture names an unknown schedule {other}"),
    };
    Schedule::new(kind, &config, steps, rounding).expect("a schedule")
}

#[test]
fn ten_steps_of_shift_three_are_the_published_tables() {
    let diffusers = Schedule::diffusers(10, 3.0, 1000).expect("a schedule");
    let expected = [
        1.0, 0.960_129, 0.913_349, 0.857_692, 0.790_368, 0.707_278, 0.602_151, 0.464_876, 0.278_049, 0.008_929, 0.0,
    ];
    assert_near("diffusers", diffusers.sigmas(), &expected, 5e-7);
    let linspace = Schedule::linspace(10, 3.0, 1000).expect("a schedule");
    let expected = [
        1.0, 0.964_286, 0.923_077, 0.875, 0.818_182, 0.75, 0.666_667, 0.562_5, 0.428_571, 0.25, 0.0,
    ];
    assert_near("linspace", linspace.sigmas(), &expected, 5e-7);
}

/// Shift 1, which the shipped model has, leaves equal distances as they are.
#[test]
fn shift_one_changes_nothing() {
    let schedule = Schedule::linspace(4, 1.0, 1000).expect("a schedule");
    assert_near("linspace", schedule.sigmas(), &[1.0, 0.75, 0.5, 0.25, 0.0], 1e-15);
    let schedule = Schedule::diffusers(4, 1.0, 1000).expect("a schedule");
    assert_near("diffusers", schedule.sigmas(), &[1.0, 0.667, 0.334, 0.001, 0.0], 1e-15);
}

#[test]
fn accessors_agree_with_the_tables() {
    let schedule = Schedule::diffusers(10, 3.0, 1000).expect("a schedule");
    for step in 0..schedule.steps() {
        assert_eq!(schedule.sigma(step), schedule.sigmas()[step]);
        assert_eq!(schedule.sigma_next(step), schedule.sigmas()[step + 1]);
        assert_eq!(schedule.dt(step), schedule.sigma_next(step) - schedule.sigma(step));
        assert_eq!(schedule.timestep(step), 1000.0 * schedule.sigma(step));
        let below_one = if step == 0 {
            schedule.sigma(1)
        } else {
            schedule.sigma(step)
        };
        assert_eq!(schedule.sigma_below_one(step), below_one);
    }
}

/// A trajectory stores its schedule; what comes back is the same table, and a damaged one is refused.
#[test]
fn a_stored_schedule_comes_back_checked() {
    let schedule = Schedule::linspace(4, 1.0, 1000)
        .expect("a schedule")
        .with_rounding(TimestepRounding::Truncated);
    let text = serde_json::to_string(&schedule).expect("JSON");
    assert_eq!(serde_json::from_str::<Schedule>(&text).expect("a schedule"), schedule);
    for damaged in [
        r#"{"sigmas":[1.0,0.5,0.5,0.0],"timesteps":[1000.0,500.0,500.0]}"#,
        r#"{"sigmas":[1.0,0.5],"timesteps":[1000.0]}"#,
        r#"{"sigmas":[1.0,0.5,0.0],"timesteps":[1000.0]}"#,
        r#"{"sigmas":[1.5,0.5,0.0],"timesteps":[1500.0,500.0]}"#,
        r#"{"sigmas":[],"timesteps":[]}"#,
    ] {
        assert!(
            serde_json::from_str::<Schedule>(damaged).is_err(),
            "{damaged} was taken"
        );
    }
}

#[test]
fn impossible_schedules_are_refused() {
    assert_eq!(Schedule::diffusers(0, 3.0, 1000), Err(ScheduleError::NoSteps));
    assert_eq!(
        Schedule::linspace(10, 0.0, 1000),
        Err(ScheduleError::Shift { shift: 0.0 })
    );
    assert!(Schedule::linspace(10, f64::NAN, 1000).is_err());
    assert_eq!(
        Schedule::diffusers(10, 3.0, 1),
        Err(ScheduleError::TrainSteps { steps: 1 })
    );
    assert!(Schedule::from_sigmas(vec![1.0, f64::NAN, 0.0], 1000).is_err());
    assert_eq!(
        Schedule::from_sigmas(vec![1.0, 0.5, 0.6, 0.0], 1000),
        Err(ScheduleError::NotFalling {
            step: 1,
            sigma: 0.5,
            next: 0.6
        })
    );
}

/// Every switch of the scheduler that would change the table is refused by name.
#[test]
fn unsupported_schedulers_are_refused_by_key() {
    for key in [
        "use_dynamic_shifting",
        "use_karras_sigmas",
        "use_exponential_sigmas",
        "use_beta_sigmas",
        "invert_sigmas",
        "stochastic_sampling",
    ] {
        let text = format!(r#"{{"shift": 3.0, "{key}": true, "a_key_of_the_future": 1}}"#);
        let config: SchedulerConfig = serde_json::from_str(&text).expect("a configuration");
        let why = config.check().expect_err("a refusal").to_string();
        assert!(why.contains(key), "{why}");
    }
    let config: SchedulerConfig = serde_json::from_str(r#"{"_class_name": "DDIMScheduler"}"#).expect("JSON");
    assert!(
        config
            .check()
            .expect_err("a refusal")
            .to_string()
            .contains("DDIMScheduler")
    );
}

proptest! {
    #[test]
    fn schedules_fall_strictly_from_one_to_zero(
        steps in 1usize..=100,
        shift in 0.5f64..10.0,
        diffusers in any::<bool>(),
        truncated in any::<bool>(),
    ) {
        let kind = if diffusers { ScheduleKind::Diffusers } else { ScheduleKind::Linspace };
        let rounding = if truncated { TimestepRounding::Truncated } else { TimestepRounding::Exact };
        let config = SchedulerConfig { shift, ..SchedulerConfig::default() };
        let schedule = Schedule::new(kind, &config, steps, rounding).expect("a schedule");
        prop_assert_eq!(schedule.steps(), steps);
        prop_assert_eq!(schedule.sigma(0), 1.0);
        prop_assert_eq!(schedule.sigma_next(steps - 1), 0.0);
        for step in 0..steps {
            prop_assert!(schedule.dt(step) < 0.0);
            prop_assert!(schedule.sigma_below_one(step) < 1.0);
            let exact = 1000.0 * schedule.sigma(step);
            prop_assert!(schedule.timestep(step) <= exact && schedule.timestep(step) > exact - 1.0);
        }
    }
}
