//! What may be said of one product.

use std::fmt;

/// Division of a layer's weight between ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Parallel {
    /// By output features: the input is gathered. QKV and fc1.
    Column,
    /// By input features: the output is summed over ranks. The projection of attention, and fc2.
    Row,
}

impl fmt::Display for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Parallel::Column => "column",
            Parallel::Row => "row",
        })
    }
}

/// The communication of a product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Comm {
    /// Rows of all ranks come to each.
    AllGather,
    /// Each rank gets its rows of the sum over ranks.
    ReduceScatter,
}

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Comm::AllGather => "an all-gather",
            Comm::ReduceScatter => "a reduce-scatter",
        })
    }
}

/// Method by which a product overlaps its communication.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    /// By chunks that come from peers, or go straight to their owner.
    RingExchange,
    /// A reduce-scatter by parts of the product.
    Pipeline,
    /// Communication of another tensor beside the product: no tile waits for it.
    Bulk,
    /// A gather under the product before it.
    External,
    /// The fastest known schedule for the sizes, fused or not. TransformerEngine has no such method.
    Auto,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 5] = [
        Method::RingExchange,
        Method::Pipeline,
        Method::Bulk,
        Method::External,
        Method::Auto,
    ];

    /// Name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Method::RingExchange => "ring_exchange",
            Method::Pipeline => "pipeline",
            Method::Bulk => "bulk",
            Method::External => "external",
            Method::Auto => "auto",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Settings of one product. `None` has the default of the product: [`Gemm`](super::Gemm) has all of them.
///
/// ```
/// use counterflow_layers::overlap::{Config, Method, Settings};
///
/// let mut config = Config::default();
/// config.set("fc1_dgrad", Settings { num_sm: Some(4), ..Settings::method(Method::Bulk) })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Settings {
    /// Method by which the product overlaps its communication.
    pub method: Option<Method>,
    /// The communication, which must be that of the product.
    pub is_reduce_scatter: Option<bool>,
    /// SMs that communicate: at least 1.
    pub num_sm: Option<u32>,
    /// CTAs in a cluster of a kernel that communicates.
    pub cga_size: Option<u32>,
    /// True if products leave `num_sm` SMs to communication.
    pub set_sm_margin: Option<bool>,
    /// Parts of a pipelined product: at least 1.
    pub num_splits: Option<u32>,
    /// Streams of products at most.
    pub num_max_streams: Option<u32>,
    /// True if chunks move in fewer, larger steps.
    pub aggregate: Option<bool>,
    /// True if one product waits for chunks by counters, instead of one product for each chunk.
    pub atomic_gemm: Option<bool>,
    /// True if copy engines move chunks, and not SMs.
    pub use_ce: Option<bool>,
    /// True if partial sums travel in FP8.
    pub fp8_buf: Option<bool>,
    /// Priority of the stream that communicates.
    pub comm_priority: Option<i32>,
    /// Priority of the stream of products.
    pub gemm_priority: Option<i32>,
    /// True if the first part of a pipelined product is computed ahead.
    pub pipeline_rs_overlap_first_gemm: Option<bool>,
}

impl Settings {
    /// A method, and nothing else.
    pub fn method(method: Method) -> Settings {
        Settings {
            method: Some(method),
            ..Settings::default()
        }
    }
}
