//! The flags of layers, and what follows from them.

use super::gemm::Gemm;
use super::settings::{Method, Parallel};
use counterflow::Error;

/// The flags of a layer: `Linear`, `LayerNormLinear`, `LayerNormMLP`, `MultiheadAttention`. All are off by default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Flags {
    /// Gathers are fused with their product: of a column-parallel layer's input, and of a row-parallel layer's output gradient.
    pub ub_overlap_ag: bool,
    /// The reduce-scatter of a row-parallel layer's output is fused with its product.
    pub ub_overlap_rs: bool,
    /// The reduce-scatter of a column-parallel layer's input gradient is fused with its product. The bulk flags fall away.
    pub ub_overlap_rs_dgrad: bool,
    /// A column-parallel layer gathers its input again beside the product of the input's gradient.
    pub ub_bulk_dgrad: bool,
    /// A column-parallel layer's input gradient is summed over ranks beside the product of the weight's gradient.
    pub ub_bulk_wgrad: bool,
}

/// The flags of `TransformerLayer`: a master switch, and the others, all on by default but `ub_overlap_rs_dgrad`.
///
/// ```
/// use counterflow_layers::overlap::{Flags, ModuleFlags};
///
/// assert_eq!(ModuleFlags::default().flags(), Flags::default());
/// let on = ModuleFlags { ub_tp_comm_overlap: true, ..ModuleFlags::default() };
/// assert!(on.flags().ub_bulk_dgrad && !on.flags().ub_overlap_rs_dgrad);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ModuleFlags {
    /// The master switch: off, all others are off, too.
    pub ub_tp_comm_overlap: bool,
    /// See [`Flags::ub_overlap_ag`].
    pub ub_overlap_ag: bool,
    /// See [`Flags::ub_overlap_rs`].
    pub ub_overlap_rs: bool,
    /// See [`Flags::ub_overlap_rs_dgrad`].
    pub ub_overlap_rs_dgrad: bool,
    /// See [`Flags::ub_bulk_dgrad`].
    pub ub_bulk_dgrad: bool,
    /// See [`Flags::ub_bulk_wgrad`].
    pub ub_bulk_wgrad: bool,
}

impl Default for ModuleFlags {
    fn default() -> Self {
        ModuleFlags {
            ub_tp_comm_overlap: false,
            ub_overlap_ag: true,
            ub_overlap_rs: true,
            ub_overlap_rs_dgrad: false,
            ub_bulk_dgrad: true,
            ub_bulk_wgrad: true,
        }
    }
}

impl ModuleFlags {
    /// The flags of its layers.
    pub fn flags(self) -> Flags {
        let on = |flag| self.ub_tp_comm_overlap && flag;
        Flags {
            ub_overlap_ag: on(self.ub_overlap_ag),
            ub_overlap_rs: on(self.ub_overlap_rs),
            ub_overlap_rs_dgrad: on(self.ub_overlap_rs_dgrad),
            ub_bulk_dgrad: on(self.ub_bulk_dgrad),
            ub_bulk_wgrad: on(self.ub_bulk_wgrad),
        }
    }
}

/// The overlaps that a layer has. The default has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Overlap {
    /// Column: the input is gathered in the output's product.
    pub fprop_ag: bool,
    /// Row: the output is summed in its product.
    pub fprop_rs: bool,
    /// Row: the output's gradient is gathered in the product of the input's gradient.
    pub dgrad_ag: bool,
    /// Column: the input's gradient is summed in its product.
    pub dgrad_rs: bool,
    /// Column: the input is gathered beside the product of its gradient.
    pub bulk_dgrad: bool,
    /// Column: the input's gradient is summed beside the product of the weight's gradient.
    pub bulk_wgrad: bool,
}

impl Flags {
    /// The overlaps of a layer. Without sequence parallelism, or on one rank, there are none. A frozen weight has no gradient, so
    /// nothing can run beside that product, and the input need not be gathered again.
    ///
    /// ```
    /// use counterflow_layers::overlap::{Flags, Parallel};
    ///
    /// let flags = Flags { ub_overlap_ag: true, ..Flags::default() };
    /// assert!(flags.overlap(Parallel::Column, true, 4, false).fprop_ag);
    /// assert!(flags.overlap(Parallel::Row, true, 4, false).dgrad_ag);
    /// ```
    pub fn overlap(
        self,
        parallel: Parallel,
        sequence_parallel: bool,
        tp_size: u32,
        frozen: bool,
    ) -> Overlap {
        let some = sequence_parallel && tp_size > 1;
        let column = some && parallel == Parallel::Column;
        let row = some && parallel == Parallel::Row;
        let bulk = column && !self.ub_overlap_rs_dgrad && !frozen;
        Overlap {
            fprop_ag: column && self.ub_overlap_ag,
            fprop_rs: row && self.ub_overlap_rs,
            dgrad_ag: row && self.ub_overlap_ag,
            dgrad_rs: column && self.ub_overlap_rs_dgrad,
            bulk_dgrad: bulk && self.ub_bulk_dgrad,
            bulk_wgrad: bulk && self.ub_bulk_wgrad,
        }
    }
}

impl Overlap {
    /// True if there is any.
    pub fn any(self) -> bool {
        self != Overlap::default()
    }

    /// Refuses a product of the input's gradient whose method is not what the flags ask for.
    pub(crate) fn fits(self, dgrad: &Gemm) -> Result<(), Error> {
        let bulk = dgrad.method == Method::Bulk;
        let (method, name) = (dgrad.method, &dgrad.name);
        if self.dgrad_rs && bulk {
            return Err(Error::Usage {
                what: format!("ub_overlap_rs_dgrad, where {name} has the method {method}"),
                legal: format!("give {name} the method pipeline, ring_exchange or auto"),
            });
        }
        if (self.bulk_dgrad || self.bulk_wgrad) && !bulk {
            return Err(Error::Usage {
                what: format!(
                    "ub_bulk_dgrad or ub_bulk_wgrad, where {name} has the method {method}"
                ),
                legal: format!("set ub_overlap_rs_dgrad, or give {name} the method bulk"),
            });
        }
        Ok(())
    }
}
