//! Window laws: their mass functions, the draw from them, and what they refuse.

use proptest::prelude::*;
use tree_core::{AtEnd, WindowError, WindowLaw};

use crate::support::{assert_all_close, assert_close};

const PAPER: WindowLaw = WindowLaw::Geometric { ratio: 0.5 };

/// Pins the paper's law for T = 10, w = 3, r = .5: `64/127, 32/127, … 1/127`, as printed to four digits.
#[test]
fn geometric_mass_of_the_paper() {
    let probabilities = PAPER.probabilities(10, 3, 0).expect("a valid law");
    let printed = [0.5039, 0.2520, 0.1260, 0.0630, 0.0315, 0.0157, 0.0079];
    assert_all_close(&probabilities, &printed, 5e-5);
    let exact: Vec<f64> = (0..7).map(|start| f64::from(64 >> start) / 127.0).collect();
    assert_all_close(&probabilities, &exact, 1e-15);
    // 202, 176, … evaluations cost 177.4 on average under this law.
    let mean: f64 = probabilities
        .iter()
        .zip([202.0, 176.0, 150.0, 124.0, 98.0, 72.0, 46.0])
        .map(|(p, c)| p * c)
        .sum();
    assert_close(mean, 177.4, 0.05);
}

/// Pins that rounding makes no probability larger than 1, which it did for this ratio and a single start.
#[test]
fn a_single_start_has_no_more_than_certainty() {
    let law = WindowLaw::Geometric {
        ratio: 0.488_362_841_815_641_44,
    };
    let probabilities = law.probabilities(14, 13, 0).expect("a valid law");
    assert!(
        probabilities[0] <= 1.0 && probabilities[0] > 1.0 - 1e-12,
        "{probabilities:?}"
    );
}

/// Pins the shifting window: one step per 50 iterations, and both policies at the end (the last start is 6).
#[test]
fn shifting_stays_or_wraps() {
    let start = |iteration, at_end| {
        let law = WindowLaw::Shifting {
            every: 50,
            by: 1,
            at_end,
        };
        law.draw(10, 3, iteration, 0.0).expect("a valid law")
    };
    for at_end in [AtEnd::Stay, AtEnd::Wrap] {
        assert_eq!(
            [0, 49, 50, 99, 100, 349].map(|iteration| start(iteration, at_end)),
            [0, 0, 1, 1, 2, 6]
        );
    }
    assert_eq!(
        [350, 10_000, u64::MAX].map(|iteration| start(iteration, AtEnd::Stay)),
        [6, 6, 6]
    );
    assert_eq!(
        [350, 400, 700].map(|iteration| start(iteration, AtEnd::Wrap)),
        [0, 1, 0]
    );
}

/// Pins that uniform and fixed laws are what they are called.
#[test]
fn uniform_and_fixed() {
    assert_all_close(
        &WindowLaw::Uniform.probabilities(6, 2, 3).expect("valid"),
        &[0.25; 4],
        1e-15,
    );
    let fixed = WindowLaw::Fixed { start: 2 };
    assert_all_close(
        &fixed.probabilities(6, 2, 3).expect("valid"),
        &[0.0, 0.0, 1.0, 0.0],
        0.0,
    );
    assert_eq!(fixed.draw(6, 2, 3, 0.9), Ok(2));
}

/// Pins every refusal.
#[test]
fn refusals() {
    assert_eq!(PAPER.probabilities(10, 0, 0), Err(WindowError::Empty));
    assert_eq!(
        PAPER.probabilities(3, 3, 0),
        Err(WindowError::TooWide {
            width: 3,
            total_steps: 3
        })
    );
    assert_eq!(
        PAPER.probabilities(3, 9, 0),
        Err(WindowError::TooWide {
            width: 9,
            total_steps: 3
        })
    );
    for ratio in [0.0, 1.0, -0.5, 1.5, f64::INFINITY] {
        assert_eq!(
            WindowLaw::Geometric { ratio }.draw(10, 3, 0, 0.5),
            Err(WindowError::Ratio { ratio })
        );
    }
    assert!(matches!(
        WindowLaw::Geometric { ratio: f64::NAN }.draw(10, 3, 0, 0.5),
        Err(WindowError::Ratio { .. })
    ));
    let still = WindowLaw::Shifting {
        every: 0,
        by: 1,
        at_end: AtEnd::Stay,
    };
    assert_eq!(still.draw(10, 3, 0, 0.5), Err(WindowError::Every));
    let late = WindowLaw::Fixed { start: 7 };
    assert_eq!(
        late.draw(10, 3, 0, 0.5),
        Err(WindowError::StartOutOfRange { start: 7, last: 6 })
    );
    assert_eq!(PAPER.draw(10, 3, 0, 1.0), Err(WindowError::Uniform01 { value: 1.0 }));
    assert!(matches!(
        PAPER.draw(10, 3, 0, f64::NAN),
        Err(WindowError::Uniform01 { .. })
    ));
}

/// Pins the names under which laws are stored.
#[test]
fn stored_names() {
    let read = |text: &str| serde_json::from_str::<WindowLaw>(text).expect("a known law");
    assert_eq!(read(r#"{"law": "geometric", "ratio": 0.5}"#), PAPER);
    assert_eq!(read(r#"{"law": "uniform"}"#), WindowLaw::Uniform);
    let shifting = WindowLaw::Shifting {
        every: 50,
        by: 1,
        at_end: AtEnd::Stay,
    };
    assert_eq!(read(r#"{"law": "shifting", "every": 50, "by": 1}"#), shifting);
    assert!(serde_json::from_str::<WindowLaw>(r#"{"law": "geometric", "r": 0.5}"#).is_err());
}

proptest! {
    /// Pins that every law is a distribution over exactly the starts that keep the last step outside.
    #[test]
    fn masses_sum_to_one(
        starts in 1_usize..60, width in 1_usize..60, iteration in 0_u64..10_000, ratio in 0.001..0.999_f64,
        every in 1_u64..100, by in 0_u64..100,
    ) {
        let total = width + starts;
        let laws = [
            WindowLaw::Geometric { ratio },
            WindowLaw::Uniform,
            WindowLaw::Shifting { every, by, at_end: AtEnd::Stay },
            WindowLaw::Shifting { every, by, at_end: AtEnd::Wrap },
            WindowLaw::Fixed { start: starts - 1 },
        ];
        for law in laws {
            let masses = law.probabilities(total, width, iteration).expect("a valid law");
            prop_assert_eq!(masses.len(), starts);
            prop_assert!(masses.iter().all(|mass| (0.0..=1.0).contains(mass)));
            prop_assert!((masses.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }

    /// Pins the draw to the mass function: it returns the start whose slice of the unit interval holds the number.
    #[test]
    fn draws_follow_the_mass(ratio in 0.05..0.95_f64, uniform01 in 0.0..1.0_f64) {
        let law = WindowLaw::Geometric { ratio };
        let masses = law.probabilities(10, 3, 0).expect("a valid law");
        let start = law.draw(10, 3, 0, uniform01).expect("a valid law");
        let below: f64 = masses[..start].iter().sum();
        prop_assert!(below <= uniform01 + 1e-12 && uniform01 < below + masses[start] + 1e-12);
    }
}
