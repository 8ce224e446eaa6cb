//! Roles of a kernel's tensors: the operands and the result of its product.

use super::beside::Beside;
use super::fused_epilogue::FusedEpilogue;
use counterflow_codegen::kernel::{Buffer, Kernel};
use counterflow_codegen::program::TensorId;
use counterflow_runtime::Error;

/// The operands and the result of the one product, and its epilogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Roles {
    pub x: TensorId,
    pub w: TensorId,
    pub y: TensorId,
    pub epilogue: FusedEpilogue,
    /// Tensors beside the result.
    pub beside: Beside<TensorId>,
}

impl Roles {
    /// Roles of a kernel that only moves data, which has no product: its first tensor, and its last one as the
    /// result.
    pub(super) fn of_moves(kernel: &Kernel) -> Roles {
        let given = kernel.buffers.iter().zip(0..);
        let given = given.filter(|(buffer, _)| !buffer.is_scratch());
        let last = given.map(|(_, index)| TensorId(index)).last();
        Roles {
            x: TensorId(0),
            w: TensorId(0),
            y: last.unwrap_or(TensorId(0)),
            epilogue: FusedEpilogue::default(),
            beside: Beside::NOTHING,
        }
    }

    /// Roles of a kernel's tensors.
    ///
    /// # Errors
    /// What is measured beside nothing.
    pub(super) fn of(kernel: &Kernel) -> Result<Roles, Error> {
        let all = |wanted: fn(&Buffer) -> bool| -> Vec<TensorId> {
            let buffers = kernel.buffers.iter().enumerate();
            buffers
                .filter(|(_, buffer)| wanted(buffer))
                .map(|(index, _)| TensorId(index as u16))
                .collect()
        };
        let inputs = all(|buffer| buffer.usage.is_input() && !buffer.usage.is_scale());
        let outputs = all(|buffer| buffer.usage.is_output());
        // Products that other ranks add are still the product.
        let moves = kernel
            .buffers
            .iter()
            .any(|buffer| buffer.usage.placement.symmetric);
        let product = moves && FusedEpilogue::adds_only(kernel);
        let epilogue = |y| FusedEpilogue::of(kernel, y).or(product.then(FusedEpilogue::default));
        if let [y] = outputs[..]
            && let Some(epilogue) = epilogue(y)
        {
            let read: Vec<TensorId> = epilogue.operands().collect();
            let rest: Vec<TensorId> = inputs
                .iter()
                .copied()
                .filter(|input| !read.contains(input))
                .collect();
            if let [x, w] = rest[..] {
                epilogue.comparable(kernel, y)?;
                let beside = Beside::of(kernel, y);
                return Ok(Roles {
                    x,
                    w,
                    y,
                    epilogue,
                    beside,
                });
            }
        }
        Err(Error::NotYet {
            what: format!(
                "measuring {} with {} inputs and {} outputs",
                kernel.name,
                inputs.len(),
                outputs.len()
            ),
            help: "measure schedules of one product: two operands, one output; between them a bias, then GELU or an added matrix".into(),
        })
    }
}
