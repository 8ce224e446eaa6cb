//! What attention is.

use crate::fp8::Recipe;
use crate::linear::LinearConfig;
use crate::overlap::Flags;
#[cfg(doc)]
use crate::random::RngTracker;
use crate::random::is_part;
use crate::side::twin::Norm;
use crate::userbuffers::Userbuffers;
use counterflow::Error;
use counterflow::op::Workspace;

/// Rotary positions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rope {
    /// The slowest pair turns by `1 / base` of a radian at each position, nearly.
    pub base: f64,
    /// The most positions of a sequence.
    pub positions: usize,
}

/// Sizes and settings of a [`MultiheadAttention`](super::MultiheadAttention).
#[derive(Clone, PartialEq, Debug)]
pub struct MultiheadAttentionConfig {
    /// Columns of input and output.
    pub hidden: usize,
    /// Heads of queries over all ranks, which they divide.
    pub heads: usize,
    /// Heads of keys, and of values, over all ranks, which they divide: fewer than those of queries for grouped queries.
    pub groups: usize,
    /// Numbers of a head: 256 at most, and with rotary positions a multiple of 16.
    pub depth: usize,
    /// The normalisation of the input's rows, if there is one.
    pub norm: Option<Norm>,
    /// Rotary positions of queries and keys.
    pub rope: Option<Rope>,
    /// True if a query sees no later key.
    pub causal: bool,
    /// The part of probabilities that is dropped. Each rank draws those of its heads from [`RngTracker::MODEL_PARALLEL`].
    pub dropout: f32,
    /// True if both products add a bias.
    pub bias: bool,
    /// True for weights that get no gradient: that of qkv, that of proj.
    pub frozen: [bool; 2],
    /// True if the gathered input of qkv is kept for the backward pass, instead of gathered again.
    pub keep_gathered: bool,
    /// Recipe by which both products become FP8. `None`: they are of bf16.
    pub fp8: Option<Recipe>,
    /// Overlap in both products.
    pub flags: Flags,
    /// The names by which the configuration has the products.
    pub ub_names: [String; 2],
}

impl MultiheadAttentionConfig {
    /// Causal, with as many heads of keys as of queries, whose numbers are the hidden size; no norm, no positions, no flags.
    pub fn new(hidden: usize, heads: usize) -> MultiheadAttentionConfig {
        MultiheadAttentionConfig {
            hidden,
            heads,
            groups: heads,
            depth: hidden / heads.max(1),
            norm: None,
            rope: None,
            causal: true,
            dropout: 0.0,
            bias: false,
            frozen: [false; 2],
            keep_gathered: false,
            fp8: None,
            flags: Flags::default(),
            ub_names: ["qkv".into(), "proj".into()],
        }
    }

    /// Of both products.
    pub(crate) fn linears(&self) -> [LinearConfig; 2] {
        [self.qkv(), self.proj()]
    }

    pub(super) fn qkv(&self) -> LinearConfig {
        let columns = (self.heads + 2 * self.groups) * self.depth;
        LinearConfig {
            bias: self.bias,
            frozen: self.frozen[0],
            keep_gathered: self.keep_gathered,
            fp8: self.fp8,
            flags: self.flags,
            ub_name: Some(self.ub_names[0].clone()),
            ..LinearConfig::column(self.hidden, columns)
        }
    }

    pub(super) fn proj(&self) -> LinearConfig {
        LinearConfig {
            bias: self.bias,
            frozen: self.frozen[1],
            fp8: self.fp8,
            flags: self.flags,
            ub_name: Some(self.ub_names[1].clone()),
            ..LinearConfig::row(self.heads * self.depth, self.hidden)
        }
    }

    /// The memory of the layer's ops at most, as [`LinearConfig::workspace`].
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`](super::MultiheadAttention::new), as far as nothing needs to be allocated.
    pub fn workspace(&self, userbuffers: &Userbuffers) -> Result<Workspace, Error> {
        self.checks(userbuffers.rank().world())?;
        let [qkv, proj] = [self.qkv(), self.proj()].map(|linear| linear.workspace(userbuffers));
        Ok(Workspace::together([qkv?, proj?]))
    }

    pub(super) fn checks(&self, world: u32) -> Result<(), Error> {
        let MultiheadAttentionConfig {
            heads,
            groups,
            depth,
            ..
        } = *self;
        is_part(self.dropout)?;
        let divided = |count: usize| count > 0 && count.is_multiple_of(world as usize);
        if divided(heads) && divided(groups) && heads.is_multiple_of(groups) && depth <= 256 {
            return Ok(());
        }
        Err(Error::Usage {
            what: format!("{heads} heads of {depth} numbers, {groups} of keys, for {world} ranks"),
            legal: "give heads that are a multiple of those of keys, both a multiple of the ranks, of 256 numbers at most".into(),
        })
    }
}
