//! A ragged forest in one breadth-first arena.

use std::collections::BTreeMap;
use std::iter::FusedIterator;
use std::ops::Range;

use crate::plan::Plan;

/// Trees that grow level by level, in flat arrays.
///
/// Nodes are numbered breadth-first over the *whole* forest: first all roots, then all their children, and so on. So
/// the nodes of a level are contiguous, the children of a node are contiguous, parents come before their children, and
/// a pass over all levels is a pass over an array. Trees may be ragged: a node may have any number of children,
/// and leaves may lie at any level.
///
/// Every root belongs to a *group*: the number of its prompt (its question, its position). Groups are numbers and never
/// texts, so equal prompts stay apart.
///
/// ```
/// use tree_core::Forest;
///
/// let mut forest = Forest::new([(7, "root".to_string())])?;
/// forest.grow(|_, _| 2, |_, parent, child| format!("{parent}/{child}"))?;
/// // Only the second node of the level goes on: the forest is ragged.
/// forest.grow(|node, _| if node == 2 { 2 } else { 0 }, |_, parent, child| format!("{parent}/{child}"))?;
/// assert_eq!(forest.leaves().collect::<Vec<_>>(), [1, 3, 4]);
/// assert_eq!(forest.payload(4), "root/1/1");
/// assert_eq!((forest.parent(4), forest.group(4)), (Some(2), 7));
/// # Ok::<(), tree_core::ForestError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forest<T> {
    /// The parent of every node, [`NO_PARENT`] for roots.
    parents: Vec<u32>,
    /// The first child of every node and, at the end, the number of nodes. The children of node `n` are
    /// `first_children[n]..first_children[n + 1]`, because breadth-first order lays the children of consecutive nodes
    /// side by side.
    first_children: Vec<u32>,
    /// The tree of every node.
    trees: Vec<u32>,
    /// The first node of every level and, at the end, the number of nodes.
    level_starts: Vec<u32>,
    /// The slot in `groups` of every tree.
    tree_slots: Vec<u32>,
    /// The distinct group numbers, in the order in which they first appeared.
    groups: Vec<usize>,
    /// The number of children of the nodes of every level, where it is the same for all.
    branching: Vec<Option<u32>>,
    leaf_count: usize,
    payloads: Vec<T>,
}

/// Why a forest could not be built or grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForestError {
    /// A forest without a tree.
    #[error("a forest needs at least one root; was the list of prompts empty?")]
    NoRoots,
    /// More nodes than the 32-bit indices of the arena can number.
    #[error(
        "the forest would have more than {} nodes, which its 32-bit indices cannot number; use fewer prompts",
        u32::MAX
    )]
    TooManyNodes,
    /// A level was given for a different number of parents.
    #[error("{got} child counts were given for the {expected} nodes of the last level; give one for each, in order")]
    CountsLength {
        /// Nodes of the last level.
        expected: usize,
        /// Counts given.
        got: usize,
    },
    /// The leaves to keep were told for a different number of leaves.
    #[error("{got} marks were given for a forest of {expected} leaves; say of each whether it is kept, in order")]
    KeptLength {
        /// Leaves of the forest.
        expected: usize,
        /// Marks given.
        got: usize,
    },
    /// A forest of which nothing is left.
    #[error("no leaf of the forest is kept, so nothing is left of it")]
    NothingKept,
    /// A different number of payloads than nodes.
    #[error("{got} payloads were given for {expected} nodes; give one for each, in order")]
    PayloadsLength {
        /// Nodes that need a payload.
        expected: usize,
        /// Payloads given.
        got: usize,
    },
}

impl<T> Forest<T> {
    /// A forest of roots, each with the number of its group and its payload.
    ///
    /// # Errors
    ///
    /// Refuses an empty forest and one with more roots than 32 bits number.
    pub fn new(roots: impl IntoIterator<Item = (usize, T)>) -> Result<Self, ForestError> {
        let mut slots = BTreeMap::new();
        let (mut groups, mut tree_slots, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
        for (group, payload) in roots {
            let slot = *slots.entry(group).or_insert_with(|| {
                groups.push(group);
                groups.len() - 1
            });
            tree_slots.push(number(slot)?);
            payloads.push(payload);
        }
        if payloads.is_empty() {
            return Err(ForestError::NoRoots);
        }
        let count = number(payloads.len())?;
        Ok(Self {
            parents: vec![NO_PARENT; payloads.len()],
            first_children: vec![count; payloads.len() + 1],
            trees: (0..count).collect(),
            level_starts: vec![0, count],
            tree_slots,
            groups,
            branching: vec![Some(0)],
            leaf_count: payloads.len(),
            payloads,
        })
    }

    /// Adds a level: `children(node, payload)` says how many children each node of the last level has (0 makes it a
    /// leaf), then `payload(parent, parent's payload, child)` makes what each child carries, children in order. Returns
    /// the numbers of the new nodes. When no node has children, no level is added and the range is empty.
    ///
    /// The level is allocated at once. If the closure panics the forest stays as it was.
    ///
    /// # Errors
    ///
    /// [`ForestError::TooManyNodes`], before anything has changed.
    pub fn grow(
        &mut self,
        mut children: impl FnMut(usize, &T) -> usize,
        mut payload: impl FnMut(usize, &T, usize) -> T,
    ) -> Result<Range<usize>, ForestError> {
        let parents = self.last_level();
        let counts: Vec<usize> = parents
            .clone()
            .map(|node| children(node, &self.payloads[node]))
            .collect();
        let total = self.total_after(&counts)?;
        let mut payloads = Vec::with_capacity(total - self.len());
        for (parent, &count) in parents.zip(&counts) {
            payloads.extend((0..count).map(|child| payload(parent, &self.payloads[parent], child)));
        }
        Ok(self.append(&counts, payloads, total))
    }

    /// Adds a level from finished parts: one child count per node of the last level, and the payloads of all children
    /// in order. For payloads that come from one batched computation over the level. Returns the new nodes' numbers.
    ///
    /// # Errors
    ///
    /// Refuses lists of the wrong length and too many nodes, before anything has changed.
    pub fn grow_from(
        &mut self,
        counts: &[usize],
        payloads: impl IntoIterator<Item = T>,
    ) -> Result<Range<usize>, ForestError> {
        let expected = self.last_level().len();
        if counts.len() != expected {
            return Err(ForestError::CountsLength {
                expected,
                got: counts.len(),
            });
        }
        let total = self.total_after(counts)?;
        let payloads: Vec<T> = payloads.into_iter().collect();
        let expected = total - self.len();
        if payloads.len() != expected {
            return Err(ForestError::PayloadsLength {
                expected,
                got: payloads.len(),
            });
        }
        Ok(self.append(counts, payloads, total))
    }

    /// All nodes of all levels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// Always false: a forest has at least one root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// Levels, the roots' included.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.level_starts.len() - 1
    }

    /// The numbers of the nodes of a level; level 0 holds the roots.
    ///
    /// # Panics
    ///
    /// If there is no such level.
    #[must_use]
    pub fn level(&self, level: usize) -> Range<usize> {
        self.level_starts[level] as usize..self.level_starts[level + 1] as usize
    }

    /// How many children every node of a level has, or none where they differ. Level by level it tells whether
    /// per-node data may be cut into equal pieces.
    ///
    /// # Panics
    ///
    /// If there is no such level.
    #[must_use]
    pub fn branching(&self, level: usize) -> Option<usize> {
        self.branching[level].map(|children| children as usize)
    }

    /// The level of a node: the number of edges above it.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn level_of(&self, node: usize) -> usize {
        assert!(node < self.len(), "node {node} of a forest of {} nodes", self.len());
        self.level_starts.partition_point(|&start| start as usize <= node) - 1
    }

    /// The parent of a node, none for a root.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn parent(&self, node: usize) -> Option<usize> {
        let parent = self.parents[node];
        (parent != NO_PARENT).then_some(parent as usize)
    }

    /// The numbers of a node's children; empty for a leaf.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    #[inline]
    pub fn children(&self, node: usize) -> Range<usize> {
        self.first_children[node] as usize..self.first_children[node + 1] as usize
    }

    /// Whether a node has no children (yet).
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    #[inline]
    pub fn is_leaf(&self, node: usize) -> bool {
        self.first_children[node] == self.first_children[node + 1]
    }

    /// The number of the tree a node belongs to, which is also the number of its root.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn tree(&self, node: usize) -> usize {
        self.trees[node] as usize
    }

    /// Trees of the forest.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.tree_slots.len()
    }

    /// The group of a node: the number its root was given.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn group(&self, node: usize) -> usize {
        self.groups[self.group_slot(node)]
    }

    /// The distinct group numbers, in the order in which they first appeared.
    #[must_use]
    pub fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// Where a node's group stands in [`Forest::groups`]: a dense index for per-group tables.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn group_slot(&self, node: usize) -> usize {
        self.tree_slots[self.trees[node] as usize] as usize
    }

    /// The numbers of all leaves, ascending. This is the order of every per-leaf slice in this crate.
    pub fn leaves(&self) -> impl FusedIterator<Item = usize> + Clone + '_ {
        (0..self.len()).filter(|&node| self.is_leaf(node))
    }

    /// Leaves of the forest.
    #[must_use]
    pub fn leaf_count(&self) -> usize {
        self.leaf_count
    }

    /// The group of every leaf, in the order of [`Forest::leaves`].
    #[must_use]
    pub fn leaf_groups(&self) -> Vec<usize> {
        let mut groups = Vec::with_capacity(self.leaf_count);
        groups.extend(self.leaves().map(|leaf| self.group(leaf)));
        groups
    }

    /// What a node carries.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn payload(&self, node: usize) -> &T {
        &self.payloads[node]
    }

    /// What a node carries, to change.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn payload_mut(&mut self, node: usize) -> &mut T {
        &mut self.payloads[node]
    }

    /// What all nodes carry, in order; a level is the slice of its range.
    #[must_use]
    pub fn payloads(&self) -> &[T] {
        &self.payloads
    }

    /// The same trees with other payloads, made in node order.
    #[must_use]
    pub fn map<U>(self, mut payload: impl FnMut(usize, T) -> U) -> Forest<U> {
        let payloads = self
            .payloads
            .into_iter()
            .enumerate()
            .map(|(node, old)| payload(node, old))
            .collect();
        Forest {
            parents: self.parents,
            first_children: self.first_children,
            trees: self.trees,
            level_starts: self.level_starts,
            tree_slots: self.tree_slots,
            groups: self.groups,
            branching: self.branching,
            leaf_count: self.leaf_count,
            payloads,
        }
    }

    fn last_level(&self) -> Range<usize> {
        self.level(self.levels() - 1)
    }

    /// The number of nodes after a level of these child counts.
    fn total_after(&self, counts: &[usize]) -> Result<usize, ForestError> {
        let sum = |total: usize, &count: &usize| total.checked_add(count);
        let total = counts
            .iter()
            .try_fold(self.len(), sum)
            .ok_or(ForestError::TooManyNodes)?;
        number(total)?;
        Ok(total)
    }

    /// Appends a level whose parts fit together and whose numbers fit 32 bits.
    fn append(&mut self, counts: &[usize], mut payloads: Vec<T>, total: usize) -> Range<usize> {
        let parents = self.last_level();
        let added = self.len()..total;
        if added.is_empty() {
            return added;
        }
        self.parents.reserve(added.len());
        self.trees.reserve(added.len());
        let mut next = added.start;
        for (parent, &count) in parents.zip(counts) {
            self.first_children[parent] = next as u32;
            self.parents.extend(std::iter::repeat_n(parent as u32, count));
            self.trees.extend(std::iter::repeat_n(self.trees[parent], count));
            self.leaf_count -= usize::from(count > 0);
            next += count;
        }
        self.leaf_count += added.len();
        // The new nodes have no children: each entry is the end of the arena. The old end becomes the first new node's.
        self.first_children[added.start] = total as u32;
        self.first_children.resize(total + 1, total as u32);
        self.level_starts.push(total as u32);
        let uniform = counts
            .iter()
            .all(|count| *count == counts[0])
            .then_some(counts[0] as u32);
        if let Some(last) = self.branching.last_mut() {
            *last = uniform;
        }
        self.branching.push(Some(0));
        self.payloads.append(&mut payloads);
        added
    }
}

impl Forest<()> {
    /// The bare forest of a plan: groups `0..prompts`, the trees of one prompt side by side.
    ///
    /// # Errors
    ///
    /// Refuses zero prompts and more nodes than 32 bits number.
    pub fn from_plan(plan: &Plan, prompts: usize) -> Result<Self, ForestError> {
        let roots = prompts.checked_mul(plan.roots()).ok_or(ForestError::TooManyNodes)?;
        number(roots)?;
        let mut forest = Self::new((0..roots).map(|root| (root / plan.roots(), ())))?;
        for step in 0..plan.steps().len() {
            forest.grow(|_, ()| plan.children(step), |_, (), _| ())?;
        }
        Ok(forest)
    }
}

/// Marks a root in the array of parents. It is no node's number, because a forest has fewer nodes than this.
const NO_PARENT: u32 = u32::MAX;

/// A node number or count as it is stored.
fn number(value: usize) -> Result<u32, ForestError> {
    match u32::try_from(value) {
        Ok(number) if number < NO_PARENT => Ok(number),
        _ => Err(ForestError::TooManyNodes),
    }
}
