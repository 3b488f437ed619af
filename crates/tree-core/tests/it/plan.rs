//! Plans: what they count, what they refuse, and that the forest built from one has what it counts.

use proptest::prelude::*;
use tree_core::{Counts, Credit, Forest, LevelWeight, Plan, PlanError, Step};

use crate::support::assert_all_close;

const MESSAGE_SINGLE_LEAF: &str = "needs at least two leaves per prompt";

/// Pins the cost of the paper's tree at every start of its window, in closed form and as printed numbers:
/// `i + Σ k^j + k^w·(T - i - w)` evaluations and `(k^w - 1)/(k - 1)` training nodes.
#[test]
fn evaluations_of_the_paper() {
    let evaluations: Vec<usize> = (0..=6)
        .map(|start| {
            let plan = Plan::windowed(10, &[start, start + 1, start + 2], 3, 1).expect("a valid plan");
            let counts = plan.counts_per_tree();
            assert_eq!(
                (counts.training_nodes, counts.leaves, counts.edges),
                (13, 27, 3 + 9 + 27)
            );
            assert_eq!(counts.evaluations, start + (1 + 3 + 9) + 27 * (10 - start - 3));
            counts.evaluations
        })
        .collect();
    assert_eq!(evaluations, [202, 176, 150, 124, 98, 72, 46]);
}

/// Pins the costs of what the tree is compared with: 27 chains with three stochastic steps, and with all but the last.
#[test]
fn costs_of_independent_samples() {
    let three = Plan::windowed(10, &[0, 1, 2], 1, 27)
        .expect("a valid plan")
        .counts_per_prompt();
    assert_eq!(
        three,
        Counts {
            evaluations: 270,
            leaves: 27,
            edges: 81,
            training_nodes: 81
        }
    );
    let nine = Plan::windowed(10, &[0, 1, 2, 3, 4, 5, 6, 7, 8], 1, 27)
        .expect("a valid plan")
        .counts_per_prompt();
    assert_eq!(
        nine,
        Counts {
            evaluations: 270,
            leaves: 27,
            edges: 243,
            training_nodes: 243
        }
    );
}

/// Pins a plan of mixed branching counted by hand: widths 1, 2, 2, 2, 4 (split, deterministic, chain, split).
#[test]
fn mixed_branching() {
    let steps = vec![
        Step::Sde { children: 2 },
        Step::Ode,
        Step::Sde { children: 1 },
        Step::Sde { children: 2 },
    ];
    let plan = Plan::new(3, steps).expect("a valid plan");
    assert_eq!(plan.widths(), [1, 2, 2, 2, 4]);
    assert_eq!(plan.stochastic_steps().collect::<Vec<_>>(), [0, 2, 3]);
    let tree = Counts {
        evaluations: 1 + 2 + 2 + 2,
        leaves: 4,
        edges: 2 + 2 + 4,
        training_nodes: 1 + 2 + 2,
    };
    assert_eq!(plan.counts_per_tree(), tree);
    let all = Counts {
        evaluations: 7 * 30,
        leaves: 4 * 30,
        edges: 8 * 30,
        training_nodes: 5 * 30,
    };
    assert_eq!(plan.counts(10), Ok(all));
}

/// Pins every refusal, and that a group of one is refused with words that name the cause.
#[test]
fn refusals() {
    let error = |plan: Result<Plan, PlanError>| plan.expect_err("the plan must be refused");
    let split = Step::Sde { children: 2 };
    assert_eq!(error(Plan::new(0, vec![split])), PlanError::NoRoots);
    assert_eq!(error(Plan::new(1, vec![])), PlanError::NoSteps);
    assert_eq!(
        error(Plan::new(1, vec![split, Step::Sde { children: 0 }])),
        PlanError::NoChildren { step: 1 }
    );
    assert_eq!(error(Plan::new(8, vec![Step::Ode; 4])), PlanError::NothingStochastic);
    assert_eq!(error(Plan::windowed(4, &[], 3, 8)), PlanError::NothingStochastic);
    assert_eq!(
        error(Plan::windowed(4, &[4], 3, 1)),
        PlanError::StepOutOfRange {
            step: 4,
            total_steps: 4
        }
    );
    assert_eq!(
        error(Plan::windowed(4, &[1, 1], 3, 1)),
        PlanError::RepeatedStep { step: 1 }
    );
    assert_eq!(
        error(Plan::windowed(4, &[3], 3, 1)),
        PlanError::StochasticLastStep { step: 3 }
    );
    for single in [
        Plan::windowed(4, &[1], 1, 1),
        Plan::new(1, vec![Step::Sde { children: 1 }; 3]),
    ] {
        let error = error(single);
        assert_eq!(error, PlanError::SingleLeaf);
        assert!(error.to_string().contains(MESSAGE_SINGLE_LEAF), "{error}");
    }
}

/// Pins that counts too large for the machine are an error and neither wrap nor abort.
#[test]
fn overflow_is_an_error() {
    assert_eq!(
        Plan::new(1, vec![Step::Sde { children: 2 }; 70]),
        Err(PlanError::Overflow)
    );
    assert_eq!(
        Plan::new(usize::MAX, vec![Step::Sde { children: 2 }]),
        Err(PlanError::Overflow)
    );
    let plan = Plan::windowed(10, &[0, 1, 2], 3, 1).expect("a valid plan");
    assert_eq!(plan.counts(usize::MAX / 100), Err(PlanError::Overflow));
}

/// Pins what baseline and level weight silently multiply the gradient of each window level by, for k = 3 and w = 3:
/// 1 - 1/3, 1 - 1/9, 1 - 1/27 under the group's mean, 1 : 3 : 9 under a mean over nodes, 1 under leave-one-out.
#[test]
fn level_factors() {
    let plan = Plan::windowed(10, &[0, 1, 2], 3, 1).expect("a valid plan");
    let path = |credit| plan.level_factors(credit, LevelWeight::Path);
    assert_all_close(&path(Credit::Subtree), &[2.0 / 3.0, 8.0 / 9.0, 26.0 / 27.0], 1e-12);
    assert_all_close(&path(Credit::Siblings), &[1.0; 3], 0.0);
    assert_all_close(&path(Credit::Temporal), &[2.0 / 3.0; 3], 1e-12);
    assert_all_close(
        &plan.level_factors(Credit::Siblings, LevelWeight::Node),
        &[1.0, 3.0, 9.0],
        1e-12,
    );
    // A second tree halves the share that an edge has in the group's mean.
    let two = Plan::windowed(10, &[0, 1, 2], 3, 2).expect("a valid plan");
    assert_all_close(
        &two.level_factors(Credit::Subtree, LevelWeight::Path)[..1],
        &[5.0 / 6.0],
        1e-12,
    );
}

/// Pins the coefficients of the edges: each level sums to 1 by path; 1/13 everywhere by node; 0 at deterministic steps.
#[test]
fn edge_weights() {
    let plan = Plan::windowed(5, &[1, 2, 3], 3, 1).expect("a valid plan");
    let path = plan.edge_weights(LevelWeight::Path);
    assert_all_close(&path, &[0.0, 1.0 / 3.0, 1.0 / 9.0, 1.0 / 27.0, 0.0], 1e-15);
    let node = 1.0 / 13.0;
    assert_all_close(
        &plan.edge_weights(LevelWeight::Node),
        &[0.0, node, node, node, 0.0],
        1e-15,
    );
}

/// Pins that a stored plan is the same after reading, and that a bad one cannot be read.
#[test]
fn plans_are_stored_and_checked() {
    let plan = Plan::windowed(5, &[1, 3], 3, 2).expect("a valid plan");
    let text = serde_json::to_string(&plan).expect("a plan is plain data");
    assert_eq!(
        serde_json::from_str::<Plan>(&text).expect("what was stored can be read"),
        plan
    );
    let bad = r#"{"roots": 1, "steps": ["ode", {"sde": {"children": 1}}]}"#;
    let error = serde_json::from_str::<Plan>(bad).expect_err("one leaf").to_string();
    assert!(error.contains(MESSAGE_SINGLE_LEAF), "{error}");
}

proptest! {
    /// Pins that a plan counts exactly what the forest built from it has, level by level.
    #[test]
    fn counts_are_those_of_the_forest(
        children in prop::collection::vec(0_usize..4, 1..6), roots in 1_usize..4, prompts in 1_usize..4,
    ) {
        let steps: Vec<Step> = children
            .iter()
            .map(|&children| if children == 0 { Step::Ode } else { Step::Sde { children } })
            .collect();
        let Ok(plan) = Plan::new(roots, steps) else { return Ok(()) };
        let forest = Forest::from_plan(&plan, prompts).expect("a small forest");
        let counts = plan.counts(prompts).expect("small counts");
        let trees = roots * prompts;
        let levels = plan.steps().len();
        prop_assert_eq!(forest.levels(), levels + 1);
        prop_assert_eq!(forest.groups(), (0..prompts).collect::<Vec<_>>());
        for level in 0..=levels {
            prop_assert_eq!(forest.level(level).len(), trees * plan.width(level));
        }
        prop_assert_eq!(forest.leaf_count(), counts.leaves);
        prop_assert_eq!((0..levels).map(|level| forest.level(level).len()).sum::<usize>(), counts.evaluations);
        let nodes = plan.stochastic_steps().map(|step| forest.level(step).len()).sum::<usize>();
        let edges = plan.stochastic_steps().map(|step| forest.level(step + 1).len()).sum::<usize>();
        prop_assert_eq!((nodes, edges), (counts.training_nodes, counts.edges));
        // Every prompt has its planned number of leaves.
        for prompt in 0..prompts {
            let own = forest.leaves().filter(|&leaf| forest.group(leaf) == prompt).count();
            prop_assert_eq!(own, plan.counts_per_prompt().leaves);
        }
    }
}
