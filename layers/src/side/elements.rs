//! Activations and sums on a rank.
#![allow(unsafe_code)]

use super::launch::Kernels;
use super::norm::eights;
use super::twin::{self, Activation, Mask};
use counterflow::op::{Argument, Running};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use std::sync::Arc;

/// The kernels of activations and sums: CUDA.
pub fn elements_text() -> String {
    "#include \"elements.cuh\"\n".into()
}

/// Activations, sums and dropout on a rank.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::{Activation, side::{ElementKernels, twin::Mask}};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let elements = ElementKernels::load(&rank)?;
/// let (x, mut y) = (rank.zeros::<bf16>([4, 16])?, rank.zeros::<bf16>([4, 8])?);
/// x.write(&[bf16::ONE; 4 * 16])?;
/// elements.activation(Activation::SwiGlu, [4, 8], &x, &mut y)?;
/// let mut dx = rank.zeros::<bf16>([4, 16])?;
/// elements.activation_backward(Activation::SwiGlu, [4, 8], [&x, &y], &mut dx)?;
///
/// let mask = Mask::new(1234, 0, 0.5);
/// let mut sum = rank.zeros::<bf16>([4, 16])?;
/// elements.dropout_add(&x, &dx, Some((&mask, 0)), &mut sum)?; // dx + dropout(x)
/// elements.dropout(&sum, (&mask, 0), &mut dx)?; // its gradient
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ElementKernels(Kernels);

impl ElementKernels {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn load(rank: &Arc<Communicator>) -> Result<ElementKernels, Error> {
        let names = [
            "gelu_forward",
            "gelu_backward",
            "swiglu_forward",
            "swiglu_backward",
            "add",
            "dropout_add",
            "dropout",
        ];
        Kernels::load(rank, &elements_text(), &names).map(ElementKernels)
    }

    /// y = activation(x), where y has so many rows and columns.
    ///
    /// # Errors
    /// [`Error::Usage`] for columns that are no multiple of 8, and what [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn activation<'a>(
        &'a self,
        activation: Activation,
        [rows, columns]: [usize; 2],
        x: &'a Tensor<bf16>,
        y: impl Into<Argument<'a>>,
    ) -> Result<(), Error> {
        eights(columns)?;
        let (outputs, inputs) = (rows * columns, activation.inputs(rows * columns));
        let call = self.0.call(match activation {
            Activation::Gelu => "gelu_forward",
            Activation::SwiGlu => "swiglu_forward",
        });
        let call = call
            .read::<bf16>("x", inputs, x)
            .written::<bf16>("y", outputs, y);
        let call = call.number(outputs / 8);
        let call = match activation {
            Activation::Gelu => call,
            Activation::SwiGlu => call.number(columns / 8),
        };
        let twin = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, inputs)?;
            let mut y = vec![bf16::ZERO; outputs];
            activation.forward(&x, columns, &mut y);
            running.write(1, &y)
        };
        // SAFETY: a thread for each eight of the output; the parameters are the kernel's.
        unsafe { call.launch(outputs / 8, twin).map(drop) }
    }

    /// The gradient of x, of x and that of y.
    ///
    /// # Errors
    /// As [`ElementKernels::activation`].
    pub fn activation_backward<'a>(
        &'a self,
        activation: Activation,
        [rows, columns]: [usize; 2],
        [x, dy]: [&'a Tensor<bf16>; 2],
        dx: impl Into<Argument<'a>>,
    ) -> Result<(), Error> {
        eights(columns)?;
        let (outputs, inputs) = (rows * columns, activation.inputs(rows * columns));
        let call = self.0.call(match activation {
            Activation::Gelu => "gelu_backward",
            Activation::SwiGlu => "swiglu_backward",
        });
        let call = call
            .read::<bf16>("x", inputs, x)
            .read::<bf16>("dy", outputs, dy);
        let call = call.written::<bf16>("dx", inputs, dx).number(outputs / 8);
        let call = match activation {
            Activation::Gelu => call,
            Activation::SwiGlu => call.number(columns / 8),
        };
        let twin = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, inputs)?;
            let dy: Vec<bf16> = running.read(1, outputs)?;
            let mut dx = vec![bf16::ZERO; inputs];
            activation.backward(&x, &dy, columns, &mut dx);
            running.write(2, &dx)
        };
        // SAFETY: as in `activation`.
        unsafe { call.launch(outputs / 8, twin).map(drop) }
    }

    /// y = residual + dropout(x), or without a mask residual + x. With a mask comes the number of the first element among those of all
    /// ranks: a multiple of 8.
    ///
    /// # Errors
    /// As [`ElementKernels::activation`]; [`Error::Usage`] for a first element that is no multiple of 8.
    pub fn dropout_add(
        &self,
        x: &Tensor<bf16>,
        residual: &Tensor<bf16>,
        mask: Option<(&Mask, u64)>,
        y: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        let len = x.len();
        eights(len.max(8))?;
        let call = self
            .0
            .call(if mask.is_some() { "dropout_add" } else { "add" });
        let call = call
            .read::<bf16>("x", len, x)
            .read::<bf16>("residual", len, residual);
        let call = call.written::<bf16>("y", len, y).number(len / 8);
        let call = match mask {
            Some(mask) => call.bytes(&bytes(mask)?),
            None => call,
        };
        let twin = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, len)?;
            let residual: Vec<bf16> = running.read(1, len)?;
            let mut y = vec![bf16::ZERO; len];
            twin::dropout_add(&x, &residual, mask, &mut y);
            running.write(2, &y)
        };
        // SAFETY: a thread for each eight; the parameters are the kernel's.
        unsafe { call.launch(len / 8, twin).map(drop) }
    }

    /// The gradient of what was dropped, with the same mask.
    ///
    /// # Errors
    /// As [`ElementKernels::dropout_add`].
    pub fn dropout(
        &self,
        dy: &Tensor<bf16>,
        mask: (&Mask, u64),
        dx: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        let len = dy.len();
        eights(len.max(8))?;
        let call = self.0.call("dropout").read::<bf16>("dy", len, dy);
        let call = call.written::<bf16>("dx", len, dx).number(len / 8);
        let call = call.bytes(&bytes(mask)?);
        let twin = |running: &Running<'_>| {
            let dy: Vec<bf16> = running.read(0, len)?;
            let mut dx = vec![bf16::ZERO; len];
            twin::dropout(&dy, mask, &mut dx);
            running.write(1, &dx)
        };
        // SAFETY: as in `dropout_add`.
        unsafe { call.launch(len / 8, twin).map(drop) }
    }
}

/// A mask as the kernels have it.
fn bytes((mask, first): (&Mask, u64)) -> Result<Vec<u8>, Error> {
    if !first.is_multiple_of(8) {
        return Err(Error::Usage {
            what: format!("dropout from element {first} on"),
            legal: "give a multiple of 8".into(),
        });
    }
    let wide = [mask.offset, first / 8].map(u64::to_le_bytes);
    let narrow = [mask.below.to_le_bytes(), mask.scale().to_le_bytes()];
    let keys = mask.keys();
    let keys = keys.as_flattened().iter().flat_map(|key| key.to_le_bytes());
    let plain = [wide.as_flattened(), narrow.as_flattened()].concat();
    Ok(plain.into_iter().chain(keys).collect())
}
