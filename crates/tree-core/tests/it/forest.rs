//! The arena: order, relations, raggedness and refusals.

use proptest::prelude::*;
use tree_core::{Forest, ForestError, Plan};

use crate::support::any_forest;

/// Pins the numbering of a ragged forest of two trees, drawn by hand:
///
/// ```text
/// level 0      0          1
/// level 1   2     3       4
/// level 2  5 6         7 8 9
/// ```
#[test]
fn ragged_by_hand() {
    let mut forest = Forest::new([(5, 'a'), (9, 'b')]).expect("two roots");
    assert_eq!(forest.grow_from(&[2, 1], ['c', 'd', 'e']), Ok(2..5));
    assert_eq!(forest.grow_from(&[2, 0, 3], ['f', 'g', 'h', 'i', 'j']), Ok(5..10));
    assert_eq!(
        (forest.len(), forest.levels(), forest.trees(), forest.leaf_count()),
        (10, 3, 2, 6)
    );
    assert_eq!(forest.leaves().collect::<Vec<_>>(), [3, 5, 6, 7, 8, 9]);
    assert_eq!(
        [forest.children(0), forest.children(3), forest.children(4)],
        [2..4, 7..7, 7..10]
    );
    assert_eq!(
        [0, 1, 2, 5, 7].map(|node| forest.parent(node)),
        [None, None, Some(0), Some(2), Some(4)]
    );
    assert_eq!([0, 1, 6, 9].map(|node| forest.group(node)), [5, 9, 5, 9]);
    assert_eq!([0, 1, 6, 9].map(|node| forest.tree(node)), [0, 1, 0, 1]);
    assert_eq!([0, 1, 2].map(|level| forest.level(level)), [0..2, 2..5, 5..10]);
    assert_eq!([0, 1, 2].map(|level| forest.branching(level)), [None, None, Some(0)]);
    assert_eq!(forest.leaf_groups(), [5, 5, 5, 9, 9, 9]);
    assert_eq!(forest.payloads()[4..7].iter().collect::<String>(), "efg");
    let upper = forest.map(|node, letter| (node, letter.to_ascii_uppercase()));
    assert_eq!(upper.payload(7), &(7, 'H'));
}

/// Pins that groups are numbers: equal ones are one group even when their roots are apart, and huge ones stay distinct.
#[test]
fn groups_are_numbers() {
    let large = (1 << 53) + 1;
    let forest = Forest::new([(large, ()), (3, ()), (large, ()), (large - 1, ())]).expect("four roots");
    assert_eq!(forest.groups(), [large, 3, large - 1]);
    assert_eq!([0, 1, 2, 3].map(|node| forest.group_slot(node)), [0, 1, 0, 2]);
}

/// Pins that growing ends quietly when no node has children.
#[test]
fn growth_ends() {
    let mut forest = Forest::new([(0, ())]).expect("one root");
    assert_eq!(forest.grow(|_, ()| 0, |_, (), _| ()), Ok(1..1));
    assert_eq!((forest.levels(), forest.leaf_count()), (1, 1));
}

/// Pins every refusal, and that a refused level leaves the forest as it was.
#[test]
fn refusals() {
    assert_eq!(
        Forest::<()>::new([]).map(|forest| forest.len()),
        Err(ForestError::NoRoots)
    );
    let mut forest = Forest::new([(0, ()), (1, ())]).expect("two roots");
    let before = forest.clone();
    assert_eq!(
        forest.grow_from(&[1], [()]),
        Err(ForestError::CountsLength { expected: 2, got: 1 })
    );
    assert_eq!(
        forest.grow_from(&[1, 2], [()]),
        Err(ForestError::PayloadsLength { expected: 3, got: 1 })
    );
    assert_eq!(
        forest.grow(|_, ()| usize::MAX, |_, (), _| ()),
        Err(ForestError::TooManyNodes)
    );
    assert_eq!(
        forest.grow(|_, ()| 1 << 31, |_, (), _| ()),
        Err(ForestError::TooManyNodes)
    );
    assert_eq!(forest, before);
    let plan = Plan::windowed(10, &[0, 1, 2], 3, 2).expect("a valid plan");
    assert_eq!(
        Forest::from_plan(&plan, 0).map(|forest| forest.len()),
        Err(ForestError::NoRoots)
    );
    assert_eq!(
        Forest::from_plan(&plan, usize::MAX).map(|forest| forest.len()),
        Err(ForestError::TooManyNodes)
    );
}

/// Pins the forest of a plan: the trees of one prompt stand side by side.
#[test]
fn forest_of_a_plan() {
    let plan = Plan::windowed(4, &[1], 2, 2).expect("a valid plan");
    let forest = Forest::from_plan(&plan, 3).expect("a small forest");
    assert_eq!(
        forest.level(0).map(|root| forest.group(root)).collect::<Vec<_>>(),
        [0, 0, 1, 1, 2, 2]
    );
    assert_eq!(
        (0..5).map(|level| forest.branching(level)).collect::<Vec<_>>(),
        [1, 2, 1, 1, 0].map(Some)
    );
}

proptest! {
    /// Pins the invariants of the arena: parents precede and know their children, children and levels are contiguous
    /// and cover every node once, and groups are inherited.
    #[test]
    fn arena_invariants(forest in any_forest()) {
        let mut next = forest.level(0).end;
        for node in 0..forest.len() {
            let children = forest.children(node);
            prop_assert_eq!(children.start, next);
            next = children.end;
            prop_assert_eq!(forest.is_leaf(node), children.is_empty());
            for child in children {
                prop_assert!(child > node);
                prop_assert_eq!(forest.parent(child), Some(node));
                prop_assert_eq!(forest.group(child), forest.group(node));
                prop_assert_eq!(forest.tree(child), forest.tree(node));
                prop_assert_eq!(forest.level_of(child), forest.level_of(node) + 1);
            }
        }
        prop_assert_eq!(next, forest.len());
        prop_assert_eq!(forest.leaves().count(), forest.leaf_count());
        let mut start = 0;
        for level in 0..forest.levels() {
            let nodes = forest.level(level);
            prop_assert_eq!(nodes.start, start);
            start = nodes.end;
            let mut counts = nodes.clone().map(|node| forest.children(node).len());
            let first = counts.next().expect("a level has nodes");
            prop_assert_eq!(forest.branching(level), counts.all(|count| count == first).then_some(first));
        }
        prop_assert_eq!(start, forest.len());
    }
}
