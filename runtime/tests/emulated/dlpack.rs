//! Tensors to and from other libraries, on emulated memory.

use counterflow_runtime::dlpack::{Managed, ManagedTensor};
use counterflow_runtime::op::{Part, Running};
use counterflow_runtime::{Communicator, Error, Tensor};
use dlpack_rs::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLPackVersion, DLTensor};
use half::bf16;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

fn one() -> Result<Communicator, Error> {
    let ranks = Communicator::emulated(1)?;
    ranks[0].reserve(1 << 20)?;
    let mut ranks = ranks.into_iter();
    Ok(ranks.next().expect("a rank"))
}

#[test]
fn what_is_given_says_what_it_is_and_keeps_its_memory() -> Result<(), Error> {
    let rank = one()?;
    let stream = rank.gpu().stream()?;
    let tensor = rank.zeros::<bf16>([6, 8])?;
    tensor.write(&[bf16::ONE; 48])?;
    let view = tensor.rows(2..5)?;
    let given = view.to_dlpack(&stream)?;
    let (start, address) = (view.address().get(), tensor.address().get());
    assert_eq!(start, address + 2 * 8 * 2);
    drop((tensor, view));
    // Emulated memory that is freed cannot be read: the handle that is given keeps it.
    rank.synchronize()?;
    let raw = given.into_raw();
    {
        // SAFETY: it was just made.
        let managed = unsafe { raw.as_ref() };
        assert_eq!((managed.version.major, managed.flags), (1, 0));
        let tensor = &managed.dl_tensor;
        assert_eq!(tensor.data as u64 + tensor.byte_offset, start);
        let device = (tensor.device.device_type, tensor.device.device_id);
        assert_eq!(
            device,
            (DLDeviceType::kDLExtDev, 0),
            "no library takes it for addresses"
        );
        let dtype = (
            u32::from(tensor.dtype.code),
            tensor.dtype.bits,
            tensor.dtype.lanes,
        );
        assert_eq!(dtype, (DLDataTypeCode::kDLBfloat, 16, 1));
        // SAFETY: it has two dimensions.
        let numbers = |at: *mut i64| unsafe { std::slice::from_raw_parts(at, 2) };
        assert_eq!(tensor.ndim, 2);
        assert_eq!(
            (numbers(tensor.shape), numbers(tensor.strides)),
            (&[3, 8][..], &[8, 1][..])
        );
    }
    // SAFETY: nobody else has it.
    let back = unsafe { rank.tensor_from_dlpack::<bf16>(raw, &stream)? };
    assert_eq!((back.shape(), back.read()?), ([3, 8], vec![bf16::ONE; 24]));
    Ok(())
}

#[test]
fn a_part_of_the_heap_is_kept_too() -> Result<(), Error> {
    let rank = one()?;
    let stream = rank.gpu().stream()?;
    let x = rank.allocate::<f32>("x", [2, 3, 4])?;
    x.write(&[2.0; 24])?;
    let (given, offset) = (rank.to_dlpack(&x, &stream)?, x.offset());
    drop(x);
    assert_ne!(rank.allocate::<f32>("other", [24])?.offset(), offset);
    // SAFETY: nobody else has it.
    let back = unsafe { rank.tensor_from_dlpack::<f32>(given.into_raw(), &stream)? };
    assert_eq!((back.shape(), back.read()?), ([6, 4], vec![2.0; 24]));
    Ok(())
}

/// A tensor of another library, over memory of ours.
struct Foreign {
    shape: Vec<i64>,
    strides: Vec<i64>,
    dtype: DLDataType,
    device: DLDevice,
    major: u32,
    flags: u64,
}

/// How often a deleter was called: by address, as tests run at once.
unsafe extern "C" fn deleted(tensor: *mut ManagedTensor) {
    // SAFETY: `Foreign::made` made both boxes, and this is called once.
    let managed = unsafe { Box::from_raw(tensor) };
    // SAFETY: as above.
    let kept = unsafe { Box::from_raw(managed.manager_ctx.cast::<(Foreign, &AtomicU32)>()) };
    kept.1.fetch_add(1, Ordering::Relaxed);
}

impl Foreign {
    fn new(shape: &[i64], strides: &[i64]) -> Foreign {
        Foreign {
            shape: shape.into(),
            strides: strides.into(),
            dtype: DLDataType {
                code: DLDataTypeCode::kDLFloat as u8,
                bits: 32,
                lanes: 1,
            },
            device: DLDevice {
                device_type: DLDeviceType::kDLExtDev,
                device_id: 0,
            },
            major: 1,
            flags: 0,
        }
    }

    fn made(self, memory: &Tensor<f32>, count: &'static AtomicU32) -> NonNull<ManagedTensor> {
        let mut kept = Box::new((self, count));
        let of = &mut kept.0;
        let dl_tensor = DLTensor {
            data: (memory.address().get() - 8) as *mut c_void,
            device: of.device,
            ndim: of.shape.len() as i32,
            dtype: of.dtype,
            shape: of.shape.as_mut_ptr(),
            strides: match of.strides.is_empty() {
                true => std::ptr::null_mut(),
                false => of.strides.as_mut_ptr(),
            },
            byte_offset: 8,
        };
        let made = Box::new(ManagedTensor {
            version: DLPackVersion {
                major: of.major,
                minor: 0,
            },
            flags: of.flags,
            manager_ctx: Box::into_raw(kept).cast(),
            deleter: Some(deleted),
            dl_tensor,
        });
        NonNull::from(Box::leak(made))
    }
}

#[test]
fn what_is_taken_is_used_in_order_and_given_back_once() -> Result<(), Error> {
    static DELETED: AtomicU32 = AtomicU32::new(0);
    let rank = one()?;
    let (theirs, memory) = (rank.gpu().stream()?, rank.zeros::<f32>([3, 4])?);
    let strides: [&[i64]; 3] = [&[], &[4, 1], &[4, 1]];
    for (at, strides) in strides.into_iter().enumerate() {
        let raw = Foreign::new(&[3, 4], strides).made(&memory, &DELETED);
        // SAFETY: it was just made, over memory that stays.
        let taken = unsafe { rank.tensor_from_dlpack::<f32>(raw, &theirs)? };
        assert_eq!((taken.shape(), taken.address()), ([3, 4], memory.address()));
        let other = taken.clone();
        other.write(&[at as f32; 12])?;
        drop(taken);
        assert_eq!(
            DELETED.load(Ordering::Relaxed),
            at as u32,
            "a handle is left"
        );
        assert_eq!(memory.read()?, [at as f32; 12]);
        drop(other);
        assert_eq!(DELETED.load(Ordering::Relaxed), at as u32 + 1);
    }
    Ok(())
}

#[test]
fn what_is_no_tensor_of_this_gpu_is_refused_and_given_back() -> Result<(), Error> {
    static DELETED: AtomicU32 = AtomicU32::new(0);
    let rank = one()?;
    let (theirs, memory) = (rank.gpu().stream()?, rank.zeros::<f32>([3, 4])?);
    let plain = || Foreign::new(&[3, 4], &[4, 1]);
    let mut wrong = vec![
        (Foreign::new(&[3, 4], &[1, 3]), "make it contiguous"),
        (Foreign::new(&[3, 2], &[4, 1]), "make it contiguous"),
        (Foreign::new(&[3, -4], &[]), "none below zero"),
        (plain(), "version 1"),
        (plain(), "one on emulated GPU 0"),
        (plain(), "one on emulated GPU 0"),
        (plain(), "kind 2 with 32 bits and 1 lane"),
        (plain(), "kind 2 with 32 bits and 1 lane"),
    ];
    wrong[3].0.major = 2;
    wrong[4].0.device.device_type = DLDeviceType::kDLCPU;
    wrong[5].0.device.device_id = 1;
    wrong[6].0.dtype.code = DLDataTypeCode::kDLInt as u8;
    wrong[7].0.dtype.lanes = 2;
    let all = wrong.len() as u32;
    for (foreign, words) in wrong {
        let raw = foreign.made(&memory, &DELETED);
        // SAFETY: it was just made, over memory that stays.
        let told = unsafe { rank.tensor_from_dlpack::<f32>(raw, &theirs) };
        let told = told.expect_err(words);
        assert_eq!(told.kind(), "usage");
        assert!(
            told.help().is_some_and(|help| help.contains(words)),
            "{told} {words}"
        );
    }
    assert_eq!(DELETED.load(Ordering::Relaxed), all);
    // One element in a dimension may have any stride there.
    let raw = Foreign::new(&[1, 4], &[77, 1]).made(&memory, &DELETED);
    // SAFETY: as above.
    drop(unsafe { rank.tensor_from_dlpack::<f32>(raw, &theirs)? });
    // SAFETY: as above.
    drop(unsafe { Managed::from_raw(plain().made(&memory, &DELETED)) });
    assert_eq!(DELETED.load(Ordering::Relaxed), all + 2);
    Ok(())
}

/// A weight of another library's that nobody may write.
#[test]
fn what_may_only_be_read_is_an_input_and_nothing_else() -> Result<(), Error> {
    static DELETED: AtomicU32 = AtomicU32::new(0);
    const READ_ONLY: u64 = 1;
    let rank = one()?;
    let (theirs, memory) = (rank.gpu().stream()?, rank.zeros::<f32>([4, 4])?);
    memory.write(&[2.0; 16])?;
    let mut foreign = Foreign::new(&[4, 4], &[4, 1]);
    foreign.flags = READ_ONLY;
    let raw = foreign.made(&memory, &DELETED);
    // SAFETY: it was just made, over memory that stays.
    let mut w = unsafe { rank.tensor_from_dlpack::<f32>(raw, &theirs)? };
    let part = w.rows(1..3)?;
    let own = rank.zeros::<f32>([4, 4])?;
    for refused in [
        w.write(&[0.0; 16]),
        part.fill(0),
        w.copy_from(&own),
        part.shaped([1, 4])?.fill(0),
    ] {
        let told = refused.expect_err("refused");
        assert_eq!(
            told.to_string(),
            "a write to a tensor that another library lent to be read"
        );
    }
    own.copy_from(&w)?;
    assert_eq!((own.read()?, w.read()?), (vec![2.0; 16], vec![2.0; 16]));
    // A launch may read it, and not write it.
    let step = || rank.step(&rank);
    let written = |_: &Running<'_>| -> Result<(), Error> { Ok(()) };
    // SAFETY: the closure launches nothing.
    unsafe {
        step()
            .part(Part::of::<f32>(16).read("w"), &w)
            .launch(written)
    }?
    .wait()?;
    // SAFETY: as above.
    let told = unsafe {
        step()
            .part(Part::of::<f32>(16).written("w"), &mut w)
            .launch(written)
    };
    let told = told.map(drop).expect_err("refused").to_string();
    assert_eq!(
        told,
        "w is written, and was given by `&` or may only be read"
    );
    // Whoever it is handed on to may not write it either.
    let again = part.to_dlpack(&theirs)?.into_raw();
    // SAFETY: it was just made.
    assert_eq!(unsafe { again.as_ref() }.flags & READ_ONLY, READ_ONLY);
    // SAFETY: nobody else has it.
    let again = unsafe { rank.tensor_from_dlpack::<f32>(again, &theirs)? };
    assert!(again.fill(0).is_err());
    drop((w, part, again));
    assert_eq!(DELETED.load(Ordering::Relaxed), 1);
    Ok(())
}
