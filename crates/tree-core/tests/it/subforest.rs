//! Dropped leaves: what is left is the forest that never had them, for every rule.

use proptest::prelude::*;
use tree_core::{
    Backup, Credit, EdgeLogProbs, Forest, ForestError, LevelWeight, LogProbReduction, Normalisation, Plan,
    RunningStatistics, Scope, StdKind, Subforest,
};

use crate::support::{any_valued_forest, assert_all_close, assert_close, forest};

/// A tree of its own making, to compare the arena with.
struct Tree {
    node: usize,
    children: Vec<Tree>,
}

/// The tree below a node without the leaves that are not kept; none if nothing is left of it.
fn tree(forest: &Forest<()>, kept: &[bool], node: usize) -> Option<Tree> {
    if forest.is_leaf(node) {
        let children = Vec::new();
        return kept[node].then_some(Tree { node, children });
    }
    let children: Vec<Tree> = forest.children(node).filter_map(|n| tree(forest, kept, n)).collect();
    (!children.is_empty()).then_some(Tree { node, children })
}

/// The forest of the trees that are left, built from the roots down.
fn built_without(forest: &Forest<()>, kept: &[bool]) -> Forest<usize> {
    let trees: Vec<Tree> = forest.level(0).filter_map(|root| tree(forest, kept, root)).collect();
    let mut level: Vec<&Tree> = trees.iter().collect();
    let roots = level.iter().map(|tree| (forest.group(tree.node), tree.node));
    let mut built = Forest::new(roots).expect("a tree is left");
    while !level.is_empty() {
        let counts: Vec<usize> = level.iter().map(|tree| tree.children.len()).collect();
        level = level.iter().flat_map(|tree| &tree.children).collect();
        built
            .grow_from(&counts, level.iter().map(|tree| tree.node))
            .expect("a small forest");
    }
    built
}

/// Marks per leaf, spread over the nodes.
fn per_node(forest: &Forest<()>, kept: &[bool]) -> Vec<bool> {
    let mut marks = vec![false; forest.len()];
    for (leaf, &kept) in forest.leaves().zip(kept) {
        marks[leaf] = kept;
    }
    marks
}

/// Forests with leaf values, log-probs and marks of which at least one keeps its leaf. The values of dropped leaves
/// are NaN.
fn any_gaps() -> impl Strategy<Value = (Forest<()>, Vec<f64>, Vec<f64>, Vec<bool>)> {
    any_valued_forest()
        .prop_flat_map(|(forest, values, log_probs)| {
            let marks = prop::collection::vec(prop::bool::weighted(0.7), values.len());
            (Just(forest), Just(values), Just(log_probs), marks)
        })
        .prop_filter("nothing is kept", |(.., kept)| kept.contains(&true))
        .prop_map(|(forest, mut values, log_probs, kept)| {
            let dropped = values.iter_mut().zip(&kept).filter(|(_, kept)| !**kept);
            dropped.for_each(|(value, _)| *value = f64::NAN);
            (forest, values, log_probs, kept)
        })
}

const SOFTMAX: Backup = Backup::Softmax {
    temperature: 0.5,
    reduction: LogProbReduction::Mean,
};

/// The definition of a backup over the leaves that are kept, node by node: none where nothing is left.
fn value(forest: &Forest<()>, leaf_values: &[Option<f64>], softmax: Option<&[f64]>, node: usize) -> Option<f64> {
    if forest.is_leaf(node) {
        return leaf_values[node];
    }
    let (mut sum, mut total) = (0.0, 0.0);
    for child in forest.children(node) {
        if let Some(value) = value(forest, leaf_values, softmax, child) {
            let weight = softmax.map_or(1.0, |log_probs| (log_probs[child] / 0.5).exp());
            sum += weight * value;
            total += weight;
        }
    }
    (total > 0.0).then(|| sum / total)
}

/// The kept leaves below a node.
fn leaves_below(forest: &Forest<()>, leaf_values: &[Option<f64>], node: usize) -> Vec<f64> {
    match forest.is_leaf(node) {
        true => leaf_values[node].into_iter().collect(),
        false => {
            let children = forest.children(node);
            children
                .flat_map(|child| leaves_below(forest, leaf_values, child))
                .collect()
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The definition of a credit rule where some values are missing; 0 for an edge that is gone.
fn credit(rule: Credit, forest: &Forest<()>, leaves: &[Option<f64>], values: &[Option<f64>], node: usize) -> f64 {
    let (Some(value), parent) = (values[node], forest.parent(node)) else {
        return 0.0;
    };
    let Some(parent) = parent else { return value };
    match rule {
        Credit::Temporal => value - values[parent].expect("a parent of a node that is left is left"),
        Credit::Siblings => {
            let siblings = forest.children(parent).filter(|&other| other != node);
            let others: Vec<f64> = siblings.filter_map(|other| values[other]).collect();
            if others.is_empty() { 0.0 } else { value - mean(&others) }
        }
        Credit::Trajectory => mean(&leaves_below(forest, leaves, node)),
        _ => value,
    }
}

proptest! {
    /// Dropping leaves gives the forest that is built without them: same shape, groups, order and numbering.
    #[test]
    fn what_is_left_is_the_forest_without((forest, .., kept) in any_gaps()) {
        let left = Subforest::new(&forest, &kept).expect("one mark per leaf");
        let expected = built_without(&forest, &per_node(&forest, &kept));
        prop_assert_eq!(left.forest(), &expected);
        prop_assert_eq!(left.forest().leaf_count(), kept.iter().filter(|kept| **kept).count());
        // Leaves keep their order, so a slice per leaf needs no more than to lose entries.
        let numbers: Vec<usize> = forest.leaves().collect();
        let leaves: Vec<usize> = left.forest().leaves().map(|leaf| *left.forest().payload(leaf)).collect();
        prop_assert_eq!(left.of_leaves(&numbers), leaves);
    }

    /// Keeping all leaves changes nothing: the same nodes, the same values to the bit.
    #[test]
    fn keeping_all_changes_nothing((forest, values, log_probs) in any_valued_forest()) {
        let left = Subforest::new(&forest, &vec![true; values.len()]).expect("one mark per leaf");
        prop_assert_eq!(left.forest().payloads(), &(0..forest.len()).collect::<Vec<_>>());
        for backup in [Backup::Mean, SOFTMAX] {
            let log_probs = EdgeLogProbs { mean_reduced: &log_probs, dimensions: 1 };
            let whole = backup.values(&forest, &values, log_probs).expect("finite values");
            let same = backup.values(left.forest(), &left.of_leaves(&values), log_probs).expect("finite values");
            prop_assert_eq!(left.to_whole(&same), whole);
        }
    }

    /// Backups and credits over what is left are their definitions over the kept children and leaves: weights
    /// renormalised, baselines over the remaining siblings, 0 for an only child and for an edge that is gone. The NaN
    /// of a dropped leaf is nowhere.
    #[test]
    fn rules_are_over_what_is_left((forest, values, log_probs, kept) in any_gaps()) {
        let left = Subforest::new(&forest, &kept).expect("one mark per leaf");
        let mut leaves = vec![None; forest.len()];
        for ((leaf, &value), &kept) in forest.leaves().zip(&values).zip(&kept) {
            leaves[leaf] = kept.then_some(value);
        }
        for (backup, softmax) in [(Backup::Mean, None), (SOFTMAX, Some(log_probs.as_slice()))] {
            let of_left = left.of_nodes(&log_probs);
            let of_left = EdgeLogProbs { mean_reduced: &of_left, dimensions: 1 };
            let found = backup.values(left.forest(), &left.of_leaves(&values), of_left).expect("finite values");
            let expected: Vec<Option<f64>> =
                (0..forest.len()).map(|node| value(&forest, &leaves, softmax, node)).collect();
            for (node, (found, expected)) in left.to_whole(&found).iter().zip(&expected).enumerate() {
                prop_assert!((found - expected.unwrap_or(0.0)).abs() < 1e-12, "node {node}: {found}, {expected:?}");
            }
            for rule in [Credit::Subtree, Credit::Temporal, Credit::Siblings, Credit::Trajectory] {
                let edges = left.to_whole(&rule.edges(left.forest(), &found).expect("one value per node"));
                for (node, edge) in edges.iter().enumerate() {
                    let expected = credit(rule, &forest, &leaves, &expected, node);
                    prop_assert!((edge - expected).abs() < 1e-12, "{rule:?}, node {node}: {edge}, {expected}");
                    prop_assert!(!leaves_below(&forest, &leaves, node).is_empty() || *edge == 0.0);
                }
            }
        }
    }

    /// Leaf advantages over what is left are their definition over the kept scores, whatever the scope and the std;
    /// several trees of a prompt are one group, and a memory takes in kept scores only.
    #[test]
    fn statistics_are_over_what_is_left(
        trees in 1_usize..3,
        scores in prop::collection::vec(-5.0..5.0_f64, 24),
        marks in prop::collection::vec(prop::bool::weighted(0.7), 24),
    ) {
        // Two prompts with trees of six leaves.
        let groups: Vec<usize> = (0..2 * trees).map(|tree| 5 + tree / trees).collect();
        let forest = forest(&groups, &[vec![2], vec![3]]);
        let groups = forest.leaf_groups();
        let mut kept = marks[..groups.len()].to_vec();
        for group in [5, 6] {
            let count = groups.iter().zip(&kept).filter(|(g, kept)| **g == group && **kept).count();
            let lost = |(g, kept): (&usize, &mut bool)| if *g == group && count < 2 { *kept = false; };
            groups.iter().zip(&mut kept).for_each(lost);
        }
        prop_assume!(kept.contains(&true));
        let score = |leaf: usize| if kept[leaf] { scores[leaf] } else { f64::NAN };
        let given: Vec<f64> = (0..groups.len()).map(score).collect();
        let left = Subforest::new(&forest, &kept).expect("one mark per leaf");
        prop_assert_eq!(left.of_leaves(&groups), left.forest().leaf_groups());

        let running = Scope::Running { window: 4, min_count: 3 };
        for scope in [Scope::Group, Scope::GroupMeanBatchStd, Scope::Batch, running] {
            for std in [StdKind::Population, StdKind::Sample] {
                let normalisation = Normalisation { scope, std, ..Normalisation::default() };
                let mut memory = RunningStatistics::default();
                let found = normalisation
                    .advantages_with(&left.of_leaves(&given), &left.of_leaves(&groups), &mut memory)
                    .expect("kept scores are finite");
                let moments = |scores: &[f64]| {
                    let squares: f64 = scores.iter().map(|score| (score - mean(scores)).powi(2)).sum();
                    let lost = f64::from(u8::from(std == StdKind::Sample));
                    (mean(scores), (squares / (scores.len() as f64 - lost)).sqrt() + 1e-8)
                };
                let all: Vec<f64> = given.iter().copied().filter(|score| score.is_finite()).collect();
                let mut values = found.values.iter();
                for leaf in (0..groups.len()).filter(|&leaf| kept[leaf]) {
                    let own: Vec<f64> =
                        (0..groups.len()).filter(|&l| groups[l] == groups[leaf] && kept[l]).map(score).collect();
                    let (centre, spread) = match scope {
                        Scope::Group => moments(&own),
                        Scope::GroupMeanBatchStd => (moments(&own).0, moments(&all).1),
                        // The memory holds the last four scores of the prompt, or is too short to be used.
                        Scope::Running { .. } if own.len() >= 3 => moments(&own[own.len().saturating_sub(4)..]),
                        _ => moments(&all),
                    };
                    let expected = (score(leaf) - centre) / spread;
                    let value = *values.next().expect("one advantage per kept leaf");
                    prop_assert!((value - expected).abs() < 1e-6, "{scope:?}, leaf {leaf}: {value}, {expected}");
                    if matches!(scope, Scope::Running { .. }) {
                        prop_assert_eq!(memory.count(groups[leaf]), own.len().min(4));
                    }
                }
                prop_assert!(values.next().is_none());
            }
        }
    }

    /// Means are over what is there: the coefficients of a prompt's remaining edges sum to 1 per level under `path`, and
    /// under `node` each is one over the remaining training nodes. A prompt that lost nothing keeps its own, to the
    /// bit.
    #[test]
    fn coefficients_are_those_of_what_is_left(
        roots in 1_usize..3,
        children in 2_usize..4,
        marks in prop::collection::vec(prop::bool::weighted(0.7), 36),
    ) {
        let plan = Plan::windowed(4, &[0, 2], children, roots).expect("a plan");
        let forest = Forest::from_plan(&plan, 2).expect("a forest");
        let first = forest.leaf_count() / 2;
        // The second prompt loses nothing.
        let kept: Vec<bool> = (0..forest.leaf_count()).map(|leaf| leaf >= first || marks[leaf]).collect();
        let (forest, left) = (&forest, Subforest::new(&forest, &kept).expect("one mark per leaf"));
        let alive = left.to_whole(&vec![1.0; left.forest().len()]);
        for weight in [LevelWeight::Path, LevelWeight::Node] {
            let factors = left.edge_factors(&plan, weight);
            let weights = plan.edge_weights(weight);
            for step in plan.stochastic_steps() {
                let of = |group: usize| forest.level(step + 1).filter(move |&node| forest.group(node) == group);
                prop_assert!(of(1).all(|node| factors[node] == 1.0));
                prop_assert!(of(0).all(|node| (factors[node] == 0.0) == (alive[node] == 0.0)));
                let edges = of(0).filter(|&node| alive[node] > 0.0).count() as f64;
                let sum: f64 = of(0).map(|node| weights[step] * factors[node]).sum();
                let inner = |step| forest.level(step).filter(|&node| forest.group(node) == 0 && alive[node] > 0.0);
                let nodes = plan.stochastic_steps().flat_map(inner).count() as f64;
                let expected = match weight {
                    _ if edges == 0.0 => 0.0,
                    LevelWeight::Path => 1.0,
                    LevelWeight::Node => edges / nodes,
                };
                prop_assert!((sum - expected).abs() < 1e-12, "{weight:?}, step {step}: {sum}, not {expected}");
            }
        }
    }
}

/// By hand: a root with two children of three leaves each, scores 1, NaN, 3 and NaN, NaN, 8. The kept scores 1, 3, 8
/// have the mean 4 and the deviation √(26/3). Under `mean` the first child has (1 + 3)/2 = 2 and the second 8, so in
/// units of the deviation the values are -2 and 4, and the siblings differ by ∓6; the leaves 1 and 3 differ by ∓2, and
/// the leaf 8 has nobody left to compare with.
#[test]
fn a_forest_with_gaps_by_hand() {
    let forest = forest(&[0], &[vec![2], vec![3]]);
    let scores = [1.0, f64::NAN, 3.0, f64::NAN, f64::NAN, 8.0];
    let left = Subforest::new(&forest, &scores.map(f64::is_finite)).expect("one mark per leaf");
    let normalisation = Normalisation {
        epsilon: 0.0,
        ..Normalisation::default()
    };
    let advantages = normalisation
        .advantages(&left.of_leaves(&scores), &left.forest().leaf_groups())
        .expect("kept scores are finite");
    assert_close(advantages.statistics.batch_mean, 4.0, 1e-15);
    let values = Backup::Mean
        .values(left.forest(), &advantages.values, EdgeLogProbs::NONE)
        .expect("finite values");
    let in_scores = |rule: Credit| {
        let edges = left.to_whole(&rule.edges(left.forest(), &values).expect("one value per node"));
        edges
            .iter()
            .map(|edge| edge * (26.0_f64 / 3.0).sqrt())
            .collect::<Vec<_>>()
    };
    // The root is not centred: its children count one half each, not by their leaves.
    assert_all_close(
        &in_scores(Credit::Subtree),
        &[1.0, -2.0, 4.0, -3.0, 0.0, -1.0, 0.0, 0.0, 4.0],
        1e-12,
    );
    assert_all_close(
        &in_scores(Credit::Siblings)[1..],
        &[-6.0, 6.0, -2.0, 0.0, 2.0, 0.0, 0.0, 0.0],
        1e-12,
    );
    let sizes = Backup::Mean.effective_sample_sizes(left.forest(), EdgeLogProbs::NONE);
    let branching: Vec<f64> = sizes.expect("no log-probs are needed").into_iter().flatten().collect();
    assert_eq!(
        branching,
        [2.0, 2.0],
        "the root and its first child have two children left"
    );
}

/// By hand: trees of 3 and 9 edges per level, one of which loses its first leaf and the three leaves of its second
/// child. Of its 3 edges 2 are left and of its 9 edges 5, of its 1 + 3 training nodes 1 + 2.
#[test]
fn edge_factors_by_hand() {
    let plan = Plan::windowed(3, &[0, 1], 3, 1).expect("a plan");
    let forest = Forest::from_plan(&plan, 2).expect("a forest");
    let kept: Vec<bool> = (0..18).map(|leaf| ![0, 3, 4, 5].contains(&leaf)).collect();
    let left = Subforest::new(&forest, &kept).expect("one mark per leaf");
    let path = left.edge_factors(&plan, LevelWeight::Path);
    assert_eq!(path[forest.level(1)], [1.5, 0.0, 1.5, 1.0, 1.0, 1.0]);
    let mut second = vec![0.0, 1.8, 1.8, 0.0, 0.0, 0.0, 1.8, 1.8, 1.8];
    second.extend([1.0; 9]);
    assert_eq!(path[forest.level(2)], second);
    let node = left.edge_factors(&plan, LevelWeight::Node);
    let third = 4.0 / 3.0;
    assert_eq!(node[forest.level(1)], [third, 0.0, third, 1.0, 1.0, 1.0]);
}

/// Marks for another number of leaves and marks that keep nothing are refused; a prompt of which nothing is left is no
/// group any more.
#[test]
fn refusals_and_lost_groups() {
    let forest = forest(&[4, 9], &[vec![2]]);
    let refused = |kept: &[bool]| Subforest::new(&forest, kept).expect_err("refused");
    assert_eq!(refused(&[true; 3]), ForestError::KeptLength { expected: 4, got: 3 });
    assert_eq!(refused(&[false; 4]), ForestError::NothingKept);
    let left = Subforest::new(&forest, &[false, false, true, false]).expect("one mark per leaf");
    assert_eq!(left.forest().groups(), [9]);
    assert_eq!(left.to_whole(&[7.0, 8.0]), [0.0, 7.0, 0.0, 0.0, 8.0, 0.0]);
}
