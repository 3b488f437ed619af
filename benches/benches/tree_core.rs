//! Speed of the tree arithmetic: a plan, a forest, and the way from scores to edge advantages, on one core.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use tree_core::{Backup, ClippedObjective, Credit, EdgeLogProbs, Forest, LogProbReduction, Normalisation, Plan, Step};

/// Prompts of the large forest: with 27 leaves each they make a million leaves, less one.
const PROMPTS: usize = 37_037;

fn plans(criterion: &mut Criterion) {
    criterion.bench_function("plan of a 4096-prompt iteration", |bencher| {
        bencher.iter(|| {
            let plan = Plan::windowed(black_box(10), &[0, 1, 2], 3, 1).expect("a valid plan");
            plan.counts(black_box(4096)).expect("no overflow")
        });
    });
}

fn credit(criterion: &mut Criterion) {
    let forest = forest();
    let scores: Vec<f64> = (0..forest.leaf_count()).map(|leaf| noise(leaf as u64)).collect();
    let log_probs: Vec<f64> = (0..forest.len()).map(|node| -0.1 + 0.01 * noise(node as u64)).collect();
    let log_probs = EdgeLogProbs {
        mean_reduced: &log_probs,
        dimensions: 65_536,
    };
    let groups = forest.leaf_groups();
    let softmax = Backup::Softmax {
        temperature: 1.0,
        reduction: LogProbReduction::Mean,
    };

    let mut group = criterion.benchmark_group("1,000,000 leaves, k=3");
    group.sample_size(20);
    group.bench_function("growing the forest", |bencher| bencher.iter(self::forest));
    group.bench_function("normalisation", |bencher| {
        bencher.iter(|| {
            Normalisation::default()
                .advantages(black_box(&scores), &groups)
                .expect("finite scores")
        });
    });
    for (name, backup, rule) in [
        ("mean backup, subtree credit", Backup::Mean, Credit::Subtree),
        ("mean backup, temporal credit", Backup::Mean, Credit::Temporal),
        ("mean backup, siblings credit", Backup::Mean, Credit::Siblings),
        ("mean backup, per-depth credit", Backup::Mean, Credit::PerDepth),
        ("mean backup, trajectory credit", Backup::Mean, Credit::Trajectory),
        ("softmax backup, subtree credit", softmax, Credit::Subtree),
        ("softmax backup, siblings credit", softmax, Credit::Siblings),
    ] {
        // A fresh vector in every round, as the first iteration of a run has it.
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut values = backup
                    .values(&forest, black_box(&scores), log_probs)
                    .expect("valid values");
                rule.replace(&forest, &mut values).expect("one value per node");
                values
            });
        });
    }
    group.bench_function("mean backup, siblings credit, memory used again", |bencher| {
        let mut values = Vec::new();
        bencher.iter(|| {
            Backup::Mean
                .values_into(&forest, black_box(&scores), log_probs, &mut values)
                .expect("valid values");
            Credit::Siblings
                .replace(&forest, &mut values)
                .expect("one value per node");
            black_box(&values).len()
        });
    });
    group.finish();
}

fn objective(criterion: &mut Criterion) {
    let objective = ClippedObjective::new(1e-4, 5.0).expect("valid settings");
    criterion.bench_function("clipped loss of one edge", |bencher| {
        bencher.iter(|| {
            objective
                .edge(black_box(-0.100_01), black_box(-0.1), black_box(0.7))
                .expect("finite")
        });
    });
}

/// Three levels of three children for every prompt.
fn forest() -> Forest<()> {
    let plan = Plan::new(1, vec![Step::Sde { children: 3 }; 3]).expect("a valid plan");
    Forest::from_plan(&plan, PROMPTS).expect("a forest of fewer nodes than 32 bits number")
}

/// A number between 0 and 1 that looks random and is the same everywhere.
fn noise(index: u64) -> f64 {
    let mixed = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 11) as f64 / (1_u64 << 53) as f64
}

criterion_group!(benches, plans, credit, objective);
criterion_main!(benches);
