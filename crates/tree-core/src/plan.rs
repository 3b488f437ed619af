//! The plan of a forest: how many roots, and what happens at every step.

use serde::{Deserialize, Serialize};

use crate::credit::Credit;

/// What every node does at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// A deterministic step: one child, no density, nothing to train.
    Ode,
    /// A stochastic step: every node draws `children` children from one distribution, so one evaluation serves all.
    Sde {
        /// Children per node; 1 continues a chain, 2 or more branch. 0 is refused.
        children: usize,
    },
}

/// The shape of the trees of one prompt, and what they cost.
///
/// A plan counts in four units, for one tree, one prompt or an iteration (see [`Counts`]). It is validated when it is
/// built, so a plan that exists is one that can be run and trained on.
///
/// ```
/// use tree_core::Plan;
///
/// // Ten steps, the first three of them stochastic with three children each, one tree per prompt.
/// let plan = Plan::windowed(10, &[0, 1, 2], 3, 1)?;
/// let counts = plan.counts_per_prompt();
/// assert_eq!((counts.leaves, counts.evaluations), (27, 202));
/// assert_eq!((counts.training_nodes, counts.edges), (13, 39));
/// # Ok::<(), tree_core::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawPlan", into = "RawPlan")]
pub struct Plan {
    roots: usize,
    steps: Vec<Step>,
    /// Nodes per tree before each step, and at the end the leaves: one entry more than there are steps.
    widths: Vec<usize>,
    per_tree: Counts,
    per_prompt: Counts,
}

/// What a plan amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Evaluations of the policy during the rollout: one per node that takes a step, guided or not. Classifier-free
    /// guidance doubles the network's rows, not this number.
    pub evaluations: usize,
    /// Nodes at the end, each of which is scored.
    pub leaves: usize,
    /// Stochastic edges: those that have a log-prob and are trained.
    pub edges: usize,
    /// Nodes that take a stochastic step: the evaluations of one training pass.
    pub training_nodes: usize,
}

/// How the edges of different levels are weighed against each other in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LevelWeight {
    /// The mean over the edges of each level, summed over the levels: what a single path from root to leaf would
    /// contribute in expectation, so every level counts once.
    #[default]
    Path,
    /// The sum over the children of each node, averaged over all training nodes (the program released with the
    /// TreeGRPO paper): a level counts in proportion to its edges, so the bottom of the window dominates.
    Node,
}

/// Why a plan was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No tree at all.
    #[error("a plan needs at least one root per prompt; set the number of trees to 1 or more")]
    NoRoots,
    /// No step at all.
    #[error("a plan needs at least one step")]
    NoSteps,
    /// A stochastic step without children.
    #[error("step {step} has 0 children; use 1 for a chain, 2 or more to branch, or make it an ODE step")]
    NoChildren {
        /// The step, counted from 0.
        step: usize,
    },
    /// Every step is deterministic, so no edge would be trained.
    #[error("no step is stochastic, so no edge has a log-prob to train; name at least one stochastic step")]
    NothingStochastic,
    /// One leaf has nothing to be compared with.
    #[error(
        "a prompt has 1 leaf, but it needs at least two leaves per prompt for its advantages to mean anything; use \
         two or more trees per prompt, or two or more children at a stochastic step"
    )]
    SingleLeaf,
    /// A stochastic step that does not exist.
    #[error("stochastic step {step} does not exist: {total_steps} steps are numbered 0 to {}", .total_steps - 1)]
    StepOutOfRange {
        /// The step asked for.
        step: usize,
        /// The number of steps of the plan.
        total_steps: usize,
    },
    /// A stochastic step that was named twice.
    #[error("stochastic step {step} is named twice; name every step once")]
    RepeatedStep {
        /// The step.
        step: usize,
    },
    /// The last step of a diffusion would leave its noise in the result.
    #[error(
        "step {step} is the last one and must not be stochastic, because its noise would stay in the finished sample; \
         end the window at step {} or earlier, or use more steps", .step.saturating_sub(1)
    )]
    StochasticLastStep {
        /// The last step.
        step: usize,
    },
    /// A count that does not fit the machine's integers.
    #[error("the plan has more nodes than this machine can count; use fewer children, stochastic steps or prompts")]
    Overflow,
}

impl Plan {
    /// A plan of `roots` trees per prompt, all of which take `steps` in order.
    ///
    /// # Errors
    ///
    /// Refuses a plan without roots, steps or stochastic steps, with a stochastic step of 0 children, with fewer than
    /// two leaves per prompt, or with more nodes than a `usize` counts.
    pub fn new(roots: usize, steps: Vec<Step>) -> Result<Self, PlanError> {
        if roots == 0 {
            return Err(PlanError::NoRoots);
        }
        if steps.is_empty() {
            return Err(PlanError::NoSteps);
        }
        if let Some(step) = steps.iter().position(|step| *step == (Step::Sde { children: 0 })) {
            return Err(PlanError::NoChildren { step });
        }
        if steps.iter().all(|step| *step == Step::Ode) {
            return Err(PlanError::NothingStochastic);
        }
        let mut widths = Vec::with_capacity(steps.len() + 1);
        let mut per_tree = Counts::default();
        let mut width: usize = 1;
        widths.push(width);
        for step in &steps {
            per_tree.evaluations = add(per_tree.evaluations, width)?;
            if let Step::Sde { children } = *step {
                per_tree.training_nodes = add(per_tree.training_nodes, width)?;
                width = multiply(width, children)?;
                per_tree.edges = add(per_tree.edges, width)?;
            }
            widths.push(width);
        }
        per_tree.leaves = width;
        let per_prompt = per_tree.times(roots)?;
        if per_prompt.leaves < 2 {
            return Err(PlanError::SingleLeaf);
        }
        Ok(Self {
            roots,
            steps,
            widths,
            per_tree,
            per_prompt,
        })
    }

    /// A plan of `roots` trees of `total_steps` steps, stochastic with `children` children at `stochastic_steps` and
    /// deterministic elsewhere. The stochastic steps may come in any order and need not be contiguous.
    ///
    /// # Errors
    ///
    /// Besides the errors of [`Plan::new`]: a step that does not exist or is named twice, and a stochastic last step,
    /// whose noise nothing would remove.
    pub fn windowed(
        total_steps: usize,
        stochastic_steps: &[usize],
        children: usize,
        roots: usize,
    ) -> Result<Self, PlanError> {
        if total_steps == 0 {
            return Err(PlanError::NoSteps);
        }
        let mut steps = vec![Step::Ode; total_steps];
        for &step in stochastic_steps {
            if step >= total_steps {
                return Err(PlanError::StepOutOfRange { step, total_steps });
            }
            if step + 1 == total_steps {
                return Err(PlanError::StochasticLastStep { step });
            }
            if steps[step] != Step::Ode {
                return Err(PlanError::RepeatedStep { step });
            }
            steps[step] = Step::Sde { children };
        }
        Self::new(roots, steps)
    }

    /// Trees per prompt.
    #[must_use]
    pub fn roots(&self) -> usize {
        self.roots
    }

    /// The steps, first to last.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether step `step` is stochastic; false for a step that does not exist.
    #[must_use]
    pub fn is_stochastic(&self, step: usize) -> bool {
        matches!(self.steps.get(step), Some(Step::Sde { .. }))
    }

    /// The numbers of the stochastic steps, in order.
    pub fn stochastic_steps(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.steps.len()).filter(|&step| self.is_stochastic(step))
    }

    /// Children of every node at step `step`.
    ///
    /// # Panics
    ///
    /// If the plan has no such step.
    #[must_use]
    pub fn children(&self, step: usize) -> usize {
        match self.steps[step] {
            Step::Ode => 1,
            Step::Sde { children } => children,
        }
    }

    /// Nodes per tree before step `level`; at `level == steps().len()` the leaves of a tree.
    ///
    /// # Panics
    ///
    /// If `level` exceeds the number of steps.
    #[must_use]
    pub fn width(&self, level: usize) -> usize {
        self.widths[level]
    }

    /// Nodes per tree, level by level: `steps().len() + 1` entries, the last of which counts the leaves.
    #[must_use]
    pub fn widths(&self) -> &[usize] {
        &self.widths
    }

    /// What one tree amounts to.
    #[must_use]
    pub fn counts_per_tree(&self) -> Counts {
        self.per_tree
    }

    /// What the trees of one prompt amount to.
    #[must_use]
    pub fn counts_per_prompt(&self) -> Counts {
        self.per_prompt
    }

    /// What an iteration over `prompts` prompts amounts to.
    ///
    /// # Errors
    ///
    /// [`PlanError::Overflow`] if a count does not fit a `usize`.
    pub fn counts(&self, prompts: usize) -> Result<Counts, PlanError> {
        self.per_prompt.times(prompts)
    }

    /// The coefficient of an edge's loss at every step, 0 at deterministic steps.
    ///
    /// The loss of a prompt is `Σ coefficient · L(edge)` over its edges. Under [`LevelWeight::Path`] the coefficients
    /// of one level sum to 1; under [`LevelWeight::Node`] all are `1 / training_nodes`.
    #[must_use]
    pub fn edge_weights(&self, weight: LevelWeight) -> Vec<f64> {
        let per_step = |step: usize| match (self.is_stochastic(step), weight) {
            (false, _) => 0.0,
            (true, LevelWeight::Path) => 1.0 / self.edges_at(step),
            (true, LevelWeight::Node) => 1.0 / self.per_prompt.training_nodes as f64,
        };
        (0..self.steps.len()).map(per_step).collect()
    }

    /// What a credit rule and a level weight multiply the expected gradient of each stochastic step by, in order.
    ///
    /// Two effects are easy to miss. A baseline that contains the edge's own leaves takes a share of the signal away:
    /// with the mean of the group that share is one over the edges of the level, so three children give .67, .89, .96
    /// from the top of the window down. And a loss averaged over nodes counts a level by its edges: 1, 3, 9. The
    /// factors are for the mean backup, group-mean advantages and whole trees; the division by the standard deviation
    /// is common to all levels (except under [`Credit::PerDepth`]) and is left out. Under [`LevelWeight::Node`] the
    /// top level stands for 1.
    #[must_use]
    pub fn level_factors(&self, credit: Credit, weight: LevelWeight) -> Vec<f64> {
        let top = self.stochastic_steps().next().map_or(1.0, |step| self.edges_at(step));
        let factor = |step: usize| {
            let edges = self.edges_at(step);
            let baseline = match credit {
                // The group's mean holds every leaf, so an edge's own subtree is one part in `edges` of it.
                Credit::Subtree | Credit::Trajectory | Credit::PerDepth => 1.0 - 1.0 / edges,
                // The parent's value is the mean over its children, one of which is the edge's own. Only the step
                // itself counts here: with one child the value is the parent's, and nothing is left.
                Credit::Temporal => 1.0 - 1.0 / self.children(step) as f64,
                // Leave-one-out compares with nothing of its own, but an only child has nobody to compare with.
                Credit::Siblings => f64::from(u8::from(self.children(step) > 1)),
            };
            match weight {
                LevelWeight::Path => baseline,
                LevelWeight::Node => baseline * edges / top,
            }
        };
        self.stochastic_steps().map(factor).collect()
    }

    /// Edges of one prompt at a step, as a float.
    fn edges_at(&self, step: usize) -> f64 {
        (self.roots * self.widths[step + 1]) as f64
    }
}

impl Counts {
    /// All four counts, multiplied.
    fn times(self, factor: usize) -> Result<Self, PlanError> {
        Ok(Self {
            evaluations: multiply(self.evaluations, factor)?,
            leaves: multiply(self.leaves, factor)?,
            edges: multiply(self.edges, factor)?,
            training_nodes: multiply(self.training_nodes, factor)?,
        })
    }
}

/// The part of a plan that is stored; the rest is derived, and checked, when it is read back.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlan {
    roots: usize,
    steps: Vec<Step>,
}

impl TryFrom<RawPlan> for Plan {
    type Error = PlanError;

    fn try_from(raw: RawPlan) -> Result<Self, PlanError> {
        Self::new(raw.roots, raw.steps)
    }
}

impl From<Plan> for RawPlan {
    fn from(plan: Plan) -> Self {
        Self {
            roots: plan.roots,
            steps: plan.steps,
        }
    }
}

fn add(a: usize, b: usize) -> Result<usize, PlanError> {
    a.checked_add(b).ok_or(PlanError::Overflow)
}

fn multiply(a: usize, b: usize) -> Result<usize, PlanError> {
    a.checked_mul(b).ok_or(PlanError::Overflow)
}
