//! `treegrpo plan`

use serde_json::Value;

use crate::support::Folder;

/// Three children, a window of three, ten steps: 27 leaves, and from the first start to the last
/// `start + 1 + 3 + 9 + 27·(7 − start)` evaluations.
const PAPER: [&str; 8] = [
    "--set",
    "tree.children=3",
    "--set",
    "tree.window=3",
    "--set",
    "sampling.steps=10",
    "--set",
    "prompts.per_iteration=2",
];

fn plan(extra: &[&str]) -> Value {
    let mut arguments = vec!["plan", "tiny.toml", "--json"];
    arguments.extend(PAPER);
    arguments.extend(extra);
    serde_json::from_str(&Folder::new().succeed(&arguments)).unwrap()
}

#[test]
fn every_start_costs_what_the_formula_says() {
    let plan = plan(&[]);
    let starts = plan["starts"].as_array().unwrap();
    let evaluations: Vec<u64> = starts
        .iter()
        .map(|s| s["evaluations_per_tree"].as_u64().unwrap())
        .collect();
    assert_eq!(evaluations, [202, 176, 150, 124, 98, 72, 46]);
    for (start, of) in starts.iter().enumerate() {
        assert_eq!(of["start"], start);
        assert_eq!(of["leaves_per_tree"], 27);
        assert_eq!(of["training_nodes_per_tree"], 13);
        assert_eq!(of["edges_per_tree"], 39);
        assert_eq!(of["evaluations_per_iteration"], 2 * evaluations[start]);
        assert_eq!(of["leaves_per_iteration"], 54);
    }
    // The law halves from start to start.
    let mass: Vec<f64> = starts.iter().map(|s| s["probability"].as_f64().unwrap()).collect();
    assert!((mass.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert!(mass.windows(2).all(|pair| (pair[1] / pair[0] - 0.5).abs() < 1e-12));
    let expected: f64 = mass.iter().zip(&evaluations).map(|(p, e)| p * *e as f64).sum();
    assert!((plan["expected_evaluations_per_tree"].as_f64().unwrap() - expected).abs() < 1e-9);
}

#[test]
fn the_totals_are_those_of_the_first_possible_start() {
    let first = plan(&[]);
    assert_eq!(first["window_start"], 0);
    assert_eq!(first["evaluations_per_tree"], 202);
    assert_eq!(first["leaves_per_tree"], 27);
    assert_eq!(first["training_nodes_per_tree"], 13);
    assert_eq!(first["edges_per_tree"], 39);
    assert_eq!(first["evaluations_per_iteration"], 404);
    assert_eq!(first["training_nodes_per_iteration"], 26);
    assert_eq!(first["edges_per_iteration"], 78);
    assert_eq!(first["widths"].as_array().unwrap().len(), 11);
    assert!(first["memory"]["total_bytes"].as_u64().unwrap() > 10_000_000);

    let fixed = plan(&["--set", "tree.window_law=fixed", "--set", "tree.window_start=4"]);
    assert_eq!(fixed["window_start"], 4);
    assert_eq!(fixed["evaluations_per_tree"], 98);
    assert_eq!(fixed["expected_evaluations_per_tree"], 98.0);

    // Two iterations with a move in between visit two starts.
    let shifting = plan(&["--set", "tree.window_law=shifting", "--set", "tree.window_every=1"]);
    assert_eq!(shifting["window_start"], 0);
    assert_eq!(shifting["window_probabilities"][1], 0.5);
    assert_eq!(shifting["expected_evaluations_per_tree"], 189.0);
}

#[test]
fn roots_multiply_what_an_iteration_costs_and_not_a_tree() {
    let plan = plan(&["--set", "tree.roots=2"]);
    assert_eq!(plan["evaluations_per_tree"], 202);
    assert_eq!(plan["evaluations_per_iteration"], 808);
    assert_eq!(plan["trees_per_prompt"], 2);
}

#[test]
fn the_table_names_the_same_numbers() {
    let mut arguments = vec!["plan", "tiny.toml"];
    arguments.extend(PAPER);
    let text = Folder::new().succeed(&arguments);
    for line in [
        "evaluations               202            404",
        "level factors     0.667 0.889 0.963",
    ] {
        assert!(text.contains(line), "no `{line}` in:\n{text}");
    }
}
