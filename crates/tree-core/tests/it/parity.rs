//! Comparison with the reference values in `fixtures/`, or in the folder that `PARITY_FIXTURES` names.
//!
//! Everything but the layout of the files is read from them, so any folder of the same layout will do.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tree_core::{
    Backup, ClippedObjective, Credit, EdgeLogProbs, Forest, LogProbReduction, Mix, Normalisation, RewardMix,
};

/// The reference works in f64, so only the order of additions may differ.
const TOLERANCE: f64 = 1e-10;

/// Where the reference divides by a std of 0, rounding in its mean may be blown up by 1/1e-8; here it is exactly 0.
const TOLERANCE_WITHOUT_VARIANCE: f64 = 1e-6;

fn fixture(name: &str) -> Value {
    let folder = std::env::var_os("PARITY_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures"),
        PathBuf::from,
    );
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("a list was expected, not {value}"))
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("a number was expected, not {value}"))
}

fn numbers(value: &Value) -> Vec<f64> {
    list(value).iter().map(number).collect()
}

fn index(value: &Value) -> usize {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("an index was expected, not {value}")) as usize
}

/// All trees of a file as one forest, and what the file says of them in the forest's order.
struct Reference {
    file: Value,
    /// Each node carries its tree (prompt, tree of the prompt) and its number in the file.
    forest: Forest<(usize, usize, usize)>,
    /// Per reward, the scores of all leaves.
    scores: Vec<Vec<f64>>,
    log_probs: Vec<f64>,
    /// Per prompt, whether some reward is the same for all its leaves.
    without_variance: Vec<bool>,
}

impl Reference {
    fn load() -> Self {
        let file = fixture("backup.json");
        let prompts = list(&file["inputs"]["prompts"]);
        let mut roots = Vec::new();
        for (prompt, value) in prompts.iter().enumerate() {
            for (tree, value) in list(&value["trees"]).iter().enumerate() {
                let root = list(&value["parent"])
                    .iter()
                    .position(Value::is_null)
                    .expect("a tree has a root");
                roots.push((prompt, (prompt, tree, root)));
            }
        }
        let tree = |prompt: usize, tree: usize| &prompts[prompt]["trees"][tree];
        let children = |&(prompt, number, node): &(usize, usize, usize)| -> Vec<usize> {
            let parents = list(&tree(prompt, number)["parent"]).iter().enumerate();
            parents
                .filter(|(_, parent)| parent.as_u64() == Some(node as u64))
                .map(|(child, _)| child)
                .collect()
        };
        let mut forest = Forest::new(roots).expect("a file has trees");
        while !forest
            .grow(
                |_, payload| children(payload).len(),
                |_, payload, child| (payload.0, payload.1, children(payload)[child]),
            )
            .expect("a small forest")
            .is_empty()
        {}

        let rewards = list(&prompts[0]["trees"][0]["rewards"]).len();
        let score = |leaf: usize, reward: usize| {
            let &(prompt, number, node) = forest.payload(leaf);
            let leaves = list(&tree(prompt, number)["leaves"]);
            let place = leaves
                .iter()
                .position(|leaf| index(leaf) == node)
                .expect("a childless node is a leaf");
            self::number(&tree(prompt, number)["rewards"][reward][place])
        };
        let scores: Vec<Vec<f64>> = (0..rewards)
            .map(|reward| forest.leaves().map(|leaf| score(leaf, reward)).collect())
            .collect();
        let log_prob = |&(prompt, number, node): &(usize, usize, usize)| {
            tree(prompt, number)["logp"][node].as_f64().unwrap_or(f64::NAN)
        };
        let log_probs = forest.payloads().iter().map(log_prob).collect();
        let constant = |prompt: usize, scores: &Vec<f64>| {
            let mut own = forest
                .leaves()
                .zip(scores)
                .filter(|(leaf, _)| forest.group(*leaf) == prompt);
            let (_, first) = own.next().expect("a prompt has leaves");
            own.all(|(_, score)| score == first)
        };
        let without_variance = (0..prompts.len())
            .map(|prompt| scores.iter().any(|scores| constant(prompt, scores)))
            .collect();
        Self {
            without_variance,
            scores,
            log_probs,
            forest,
            file,
        }
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation {
            epsilon: number(&self.file["inputs"]["eps"]),
            ..Normalisation::default()
        }
    }

    /// The leaf advantages of the three signals of the file, by name.
    fn signals(&self) -> Vec<(&'static str, Vec<f64>)> {
        let names: Vec<String> = (0..self.scores.len())
            .map(|reward| format!("reward {reward}"))
            .collect();
        let weights = numbers(&self.file["inputs"]["weights"]);
        let scores: Vec<(&str, &[f64])> = names
            .iter()
            .map(String::as_str)
            .zip(self.scores.iter().map(Vec::as_slice))
            .collect();
        let (normalisation, groups) = (self.normalisation(), self.forest.leaf_groups());
        let mixed = |mix| {
            let rewards = RewardMix::new(mix, names.iter().cloned().zip(weights.iter().copied())).expect("weights");
            rewards
                .advantages(&normalisation, &scores, &groups)
                .expect("finite scores")
                .values
        };
        let first = normalisation
            .advantages(&self.scores[0], &groups)
            .expect("finite scores")
            .values;
        vec![
            ("first_reward", first),
            ("weighted_advantages", mixed(Mix::Advantage)),
            ("raw_sum", mixed(Mix::Reward)),
        ]
    }

    fn expected(&self, prompt: usize, tree: usize, signal: &str) -> &Value {
        &self.file["expected"]["prompts"][prompt]["trees"][tree][signal]
    }

    #[track_caller]
    fn check(&self, got: f64, expected: f64, node: usize, what: &str) {
        let (prompt, tree, number) = *self.forest.payload(node);
        let tolerance = match self.without_variance[prompt] {
            true => TOLERANCE_WITHOUT_VARIANCE,
            false => TOLERANCE * expected.abs().max(1.0),
        };
        let place = format!("{what} of prompt {prompt}, tree {tree}, node {number}");
        assert!(
            (got - expected).abs() <= tolerance,
            "{place}: got {got}, expected {expected}"
        );
    }

    fn log_probs(&self) -> EdgeLogProbs<'_> {
        EdgeLogProbs {
            mean_reduced: &self.log_probs,
            dimensions: 1,
        }
    }
}

const SOFTMAX: Backup = Backup::Softmax {
    temperature: 1.0,
    reduction: LogProbReduction::Mean,
};

/// Pins the normalisation of one reward, the mix of advantages and the mix of raw rewards.
#[test]
fn parity_leaf_advantages() {
    let reference = Reference::load();
    for (signal, values) in reference.signals() {
        for (leaf, value) in reference.forest.leaves().zip(values) {
            let (prompt, tree, node) = *reference.forest.payload(leaf);
            let leaves = list(&reference.file["inputs"]["prompts"][prompt]["trees"][tree]["leaves"]);
            let place = leaves
                .iter()
                .position(|leaf| index(leaf) == node)
                .expect("a childless node is a leaf");
            let expected = number(&reference.expected(prompt, tree, signal)["leaf_advantages"][place]);
            reference.check(value, expected, leaf, signal);
        }
    }
}

/// Pins the std that scores are divided by, and that scores without variance give exactly 0.
#[test]
fn parity_divisors() {
    let reference = Reference::load();
    let normalisation = reference.normalisation();
    for (prompt, expected) in list(&reference.file["expected"]["prompts"]).iter().enumerate() {
        let own = reference.forest.leaves().zip(&reference.scores[0]);
        let scores: Vec<f64> = own
            .filter(|(leaf, _)| reference.forest.group(*leaf) == prompt)
            .map(|(_, score)| *score)
            .collect();
        let result = normalisation
            .advantages(&scores, &vec![prompt; scores.len()])
            .expect("finite scores");
        let expected = number(&expected["divisor_first_reward"]);
        let got = result.statistics.mean_group_std + normalisation.epsilon;
        assert!(
            (got - expected).abs() <= TOLERANCE * expected.max(1e-3),
            "prompt {prompt}: {got} and {expected}"
        );
        if scores.iter().all(|score| *score == scores[0]) {
            assert!(
                result.values.iter().all(|value| *value == 0.0),
                "prompt {prompt}: {:?}",
                result.values
            );
        }
    }
}

/// Pins both backups and the three credit rules on every edge, and the values of the roots.
#[test]
fn parity_edges() {
    let reference = Reference::load();
    let forest = &reference.forest;
    for (signal, leaf_values) in reference.signals() {
        let mean = Backup::Mean
            .values(forest, &leaf_values, EdgeLogProbs::NONE)
            .expect("finite values");
        let softmax = SOFTMAX
            .values(forest, &leaf_values, reference.log_probs())
            .expect("finite log-probs");
        let rules = [
            ("mean", Credit::Subtree, &mean),
            ("softmax", Credit::Subtree, &softmax),
            ("minus_parent", Credit::Temporal, &mean),
            ("leave_one_out", Credit::Siblings, &mean),
        ];
        for (key, credit, values) in rules {
            let edges = credit.edges(forest, values).expect("one value per node");
            for (node, &edge) in edges.iter().enumerate().skip(forest.trees()) {
                let (prompt, tree, number) = *forest.payload(node);
                let expected = self::number(&reference.expected(prompt, tree, signal)["edges"][key][number]);
                reference.check(edge, expected, node, &format!("{signal}, {key}"));
            }
        }
        for (key, values) in [("root_value_mean", &mean), ("root_value_softmax", &softmax)] {
            for root in forest.level(0) {
                let (prompt, tree, _) = *forest.payload(root);
                let expected = number(&reference.expected(prompt, tree, signal)["edges"][key]);
                reference.check(values[root], expected, root, &format!("{signal}, {key}"));
            }
        }
    }
}

/// Pins the effective sample size of every branching node, and that there is none elsewhere.
#[test]
fn parity_effective_sample_sizes() {
    let reference = Reference::load();
    for (key, backup) in [("ess_mean", Backup::Mean), ("ess_softmax", SOFTMAX)] {
        let sizes = backup
            .effective_sample_sizes(&reference.forest, reference.log_probs())
            .expect("finite log-probs");
        for (node, size) in sizes.iter().enumerate() {
            let (prompt, tree, number) = *reference.forest.payload(node);
            let expected = &reference.expected(prompt, tree, "first_reward")["edges"][key][number];
            match (size, expected.as_f64()) {
                (None, None) => {}
                (Some(got), Some(expected)) => assert!((got - expected).abs() <= TOLERANCE * expected, "{key}: {got}"),
                (got, expected) => panic!("{key} of node {number}: {got:?} and {expected:?}"),
            }
        }
    }
}

/// Pins the clipped loss, the ratio, the clamp and where the clip acts, on log-probs computed by an f32 network.
#[test]
fn parity_clipped_objective() {
    let file = fixture("lora_grad.json");
    let inputs = &file["inputs"];
    let objective = ClippedObjective::new(number(&inputs["clip_eps"]), number(&inputs["adv_clip"])).expect("settings");
    for (part, old) in [("lora", "old_logp_lora"), ("full", "old_logp_full")] {
        let nodes = list(&inputs["nodes"])
            .iter()
            .zip(list(&file["expected"][part]["nodes"]));
        for (node, (input, expected)) in nodes.enumerate() {
            let log_probs = numbers(&expected["logp"]);
            for (child, &log_prob) in log_probs.iter().enumerate() {
                let advantage = number(&input["advantages"][child]);
                let got = objective
                    .edge(log_prob, number(&input[old][child]), advantage)
                    .expect("finite");
                let near = |got: f64, key: &str| {
                    let expected = number(&expected[key][child]);
                    let place = format!("{part}, node {node}, child {child}, {key}");
                    assert!(
                        (got - expected).abs() <= 1e-5 * expected.abs().max(1.0),
                        "{place}: {got} and {expected}"
                    );
                };
                near(got.loss, "edge_loss");
                near(got.ratio, "ratio");
                assert_eq!(
                    Some(got.clipped),
                    expected["clip_acts"][child].as_bool(),
                    "{part}, node {node}"
                );
            }
        }
    }
}
