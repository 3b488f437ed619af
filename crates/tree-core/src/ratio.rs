//! Statistics of the ratios of an update.

use serde::{Deserialize, Serialize};

use crate::objective::EdgeLoss;

/// Ratios of many edges, gathered one by one and merged across micro-batches or processes.
///
/// Ratios differ from 1 by 1e-6 and less, so what is kept is `ρ - 1`, computed from the log-ratio without cancellation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatioStatistics {
    count: u64,
    /// Smallest, largest and mean `ρ - 1`, and the sum of squared deviations from the mean.
    minimum: f64,
    maximum: f64,
    mean: f64,
    squares: f64,
    /// Sum of squared log-ratios.
    log_squares: f64,
    clipped_above: u64,
    clipped_below: u64,
    outside: u64,
}

impl RatioStatistics {
    /// Adds the ratio of one edge.
    #[inline]
    pub fn record(&mut self, edge: &EdgeLoss) {
        let deviation = edge.log_ratio.exp_m1();
        self.merge(&Self {
            count: 1,
            minimum: deviation,
            maximum: deviation,
            mean: deviation,
            squares: 0.0,
            log_squares: edge.log_ratio * edge.log_ratio,
            clipped_above: u64::from(edge.clipped && edge.ratio > 1.0),
            clipped_below: u64::from(edge.clipped && edge.ratio < 1.0),
            outside: u64::from(edge.outside),
        });
    }

    /// Adds all edges of another collection.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        let (own, others) = (self.count as f64, other.count as f64);
        let (total, difference) = (own + others, other.mean - self.mean);
        self.mean += difference * others / total;
        self.squares += other.squares + difference * difference * own * others / total;
        self.minimum = self.minimum.min(other.minimum);
        self.maximum = self.maximum.max(other.maximum);
        self.log_squares += other.log_squares;
        self.clipped_above += other.clipped_above;
        self.clipped_below += other.clipped_below;
        self.outside += other.outside;
        self.count += other.count;
    }

    /// Edges recorded. Everything else is 0 while there are none.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest `ρ - 1`.
    #[must_use]
    pub fn minimum(&self) -> f64 {
        self.minimum
    }

    /// The mean of `ρ - 1`.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The largest `ρ - 1`.
    #[must_use]
    pub fn maximum(&self) -> f64 {
        self.maximum
    }

    /// The population std of ρ.
    #[must_use]
    pub fn std(&self) -> f64 {
        self.per_edge(self.squares).sqrt()
    }

    /// `½·mean((log_prob - old_log_prob)²)`: an estimate of the divergence from the sampling policy, in nats.
    #[must_use]
    pub fn approx_kl(&self) -> f64 {
        0.5 * self.per_edge(self.log_squares)
    }

    /// The share of edges on which the clip acts.
    #[must_use]
    pub fn clip_fraction(&self) -> f64 {
        self.clip_fraction_above() + self.clip_fraction_below()
    }

    /// The share of edges on which the clip acts with ρ above 1 (so their advantage is positive).
    #[must_use]
    pub fn clip_fraction_above(&self) -> f64 {
        self.per_edge(self.clipped_above as f64)
    }

    /// The share of edges on which the clip acts with ρ below 1 (so their advantage is negative).
    #[must_use]
    pub fn clip_fraction_below(&self) -> f64 {
        self.per_edge(self.clipped_below as f64)
    }

    /// The share of edges whose ratio lies outside the clip range, whether or not the clip acts. It is what Flow-GRPO
    /// and others log as their clip fraction.
    #[must_use]
    pub fn outside_fraction(&self) -> f64 {
        self.per_edge(self.outside as f64)
    }

    fn per_edge(&self, sum: f64) -> f64 {
        if self.count == 0 { 0.0 } else { sum / self.count as f64 }
    }
}
