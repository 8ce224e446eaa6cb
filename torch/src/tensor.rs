//! A Python object's tensor, as its `__dlpack__` describes it.

use dlpack_rs::ffi::{DLDataTypeCode, DLDeviceType};
use dlpack_rs::pyo3_glue::PyTensor;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Where a tensor's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    Host,
    Gpu(i32),
}

/// The element types of the products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elements {
    Bf16,
    F16,
}

/// A matrix of another library: rows one after another, in memory that stays while this is there.
pub struct Given {
    pub name: &'static str,
    pub elements: Elements,
    pub home: Home,
    pub shape: [usize; 2],
    /// Of the first element.
    pub address: usize,
    _keeps: PyTensor,
}

impl Given {
    /// Takes `object.__dlpack__()`.
    pub fn take(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Given> {
        let tensor = PyTensor::from_pyany(object.py(), object)?;
        let dtype = tensor.dtype();
        let elements = match (u32::from(dtype.code), dtype.bits, dtype.lanes) {
            (DLDataTypeCode::kDLBfloat, 16, 1) => Elements::Bf16,
            (DLDataTypeCode::kDLFloat, 16, 1) => Elements::F16,
            (code, bits, _) => {
                return Err(PyTypeError::new_err(format!(
                    "{name} has elements of DLPack's kind {code} with {bits} bits: give bfloat16 or float16"
                )));
            }
        };
        let device = tensor.device();
        let home = match device.device_type {
            DLDeviceType::kDLCPU => Home::Host,
            DLDeviceType::kDLCUDA => Home::Gpu(device.device_id),
            other => {
                return Err(PyValueError::new_err(format!(
                    "{name} is on a device of DLPack's kind {other}: give one of a GPU, or of the host for emulated ranks"
                )));
            }
        };
        let sizes: Result<Vec<usize>, _> = tensor
            .shape()
            .iter()
            .map(|size| (*size).try_into())
            .collect();
        let shape = sizes
            .ok()
            .and_then(|sizes| <[usize; 2]>::try_from(sizes).ok());
        let Some(shape) = shape.filter(|_| tensor.is_contiguous()) else {
            return Err(PyValueError::new_err(format!(
                "{name} is {:?}, or its rows are apart: give a contiguous matrix",
                tensor.shape()
            )));
        };
        Ok(Given {
            name,
            elements,
            home,
            shape,
            address: tensor.data_ptr() as usize + tensor.byte_offset() as usize,
            _keeps: tensor,
        })
    }

    /// Refuses another element type, place or shape.
    pub fn check(&self, elements: Elements, home: Home, shape: [usize; 2]) -> PyResult<()> {
        if (self.elements, self.home, self.shape) == (elements, home, shape) {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "{} is {:?} of {:?} on {:?}: give {shape:?} of {elements:?} on {home:?}",
            self.name, self.shape, self.elements, self.home
        )))
    }
}
