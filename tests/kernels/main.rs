//! Tests that the kernels give the same bits as the reference. The host's C++ compiler compiles the kernels,
//! and the tests run them thread by thread.
//!
//! The tests show without a GPU that arithmetic and indexing are right. `scripts/gpu-check` tests the code
//! that a GPU's compiler generates.
#![cfg(feature = "cuda")]
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::process::Command;
use std::sync::Arc;

use libloading::Library;

use ringpull_base::{Buffer, DType, Element, with_element};
use ringpull_device::kernels::{ADDENDS, PAIRS, UNITS};
use ringpull_device::{Operation, compute};
use ringpull_kernels::compress::{Codec, SumFormat};
use ringpull_kernels::optim::{Optimizer, Rule};

const BLOCKS: u32 = 3;
const THREADS: u32 = 32;
const LENGTHS: [usize; 5] = [0, 1, 37, 96, 1003];

/// Compiles a unit as a library of the host. Returns `None` if no compiler can build it.
fn build(unit: usize) -> Option<(Library, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("kernels.cpp"), folder.path().join("kernels.so"));
    std::fs::write(&source, format!("{}\n{}", include_str!("host.cpp"), UNITS[unit].source())).unwrap();
    let flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", "-o"];
    let built = Command::new("c++").args(flags).arg(&library).arg(&source).output();
    match built {
        Ok(output) if output.status.success() => {
            // SAFETY: the library has no initialisers.
            Some((unsafe { Library::new(&library) }.unwrap(), folder))
        }
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(words.contains("_Float16"), "{} does not compile for the host:\n{words}", UNITS[unit].name);
            println!("skipped: the C++ compiler is too old for halves");
            None
        }
        Err(_) => {
            println!("skipped: there is no C++ compiler");
            None
        }
    }
}

/// Calls `$kernel` with the arguments once for every thread of a grid.
macro_rules! launch {
    ($library:expr, $kernel:expr, $rows:expr, $($type:ty: $value:expr),*) => {{
        // SAFETY: the types match the kernel's definition, and the memory outlives the calls.
        unsafe {
            let stand = $library.get::<unsafe extern "C" fn(u32, u32, u32, u32, u32)>(b"stand\0").unwrap();
            let kernel = $library.get::<unsafe extern "C" fn($($type),*)>(format!("{}\0", $kernel).as_bytes()).unwrap();
            for (block, row, thread) in (0..BLOCKS).flat_map(|b| (0..$rows).flat_map(move |r| (0..THREADS).map(move |t| (b, r, t)))) {
                stand(block, row, thread, BLOCKS, THREADS);
                kernel($($value),*);
            }
        }
    }};
}

fn value(index: usize, seed: usize) -> f64 {
    let noise = (index * 2_654_435_761 + seed * 40_503) % 65_521;
    (noise as f64 / 65_521.0 - 0.5) * [0.01, 1.0, 3.0, 100.0][(index + seed) % 4]
}

fn pattern(dtype: DType, len: usize, seed: usize, change: fn(f64) -> f64) -> Buffer {
    with_element!(dtype, T => {
        let values: Vec<T> = (0..len).map(|index| <T as Element>::from_f64(change(value(index, seed)))).collect();
        Buffer::copy_of(bytemuck::cast_slice(&values))
    })
}

fn copies(buffers: &[Buffer]) -> Vec<Buffer> {
    buffers.iter().map(|buffer| Buffer::copy_of(buffer.bytes())).collect()
}

fn to(buffer: &mut Buffer) -> *mut c_void {
    buffer.bytes_mut().as_mut_ptr().cast()
}

fn from(buffer: &Buffer) -> *const c_void {
    buffer.bytes().as_ptr().cast()
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Addends([*const c_void; ADDENDS]);

#[test]
fn sums_of_every_dtype_have_the_references_bits() {
    let Some((library, _folder)) = build(0) else { return };
    for dtype in DType::ALL {
        for len in LENGTHS {
            for count in [1, 2, 3, ADDENDS] {
                let reads: Vec<Buffer> = (0..count).map(|seed| pattern(dtype, len, seed, |v| v)).collect();
                let mut list = Addends([std::ptr::null(); ADDENDS]);
                reads.iter().enumerate().for_each(|(index, read)| list.0[index] = from(read));
                let mut sum = Buffer::zeroed(len * dtype.size_bytes());
                let name = format!("sum_{dtype}");
                launch!(library, name, 1, *mut c_void: to(&mut sum), Addends: list, i32: count as i32, u64: len as u64);
                let wanted = compute(&Operation::Sum(dtype), copies(&reads), &[]).unwrap();
                assert_eq!(sum.bytes(), wanted[0].bytes(), "{count} buffers of {len} {dtype}");
            }
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CopyPairs {
    from: [*const c_void; PAIRS],
    to: [*mut c_void; PAIRS],
    bytes: [u64; PAIRS],
}

#[test]
fn a_bucket_is_packed_whatever_the_alignment() {
    let Some((library, _folder)) = build(1) else { return };
    let source = pattern(DType::U8, 40_000, 1, |v| v);
    let mut bucket = Buffer::zeroed(40_000);
    let mut pairs = CopyPairs { from: [std::ptr::null(); PAIRS], to: [std::ptr::null_mut(); PAIRS], bytes: [0; PAIRS] };
    let mut end = 0;
    for index in 0..PAIRS {
        let len = index * index % 700 + index % 5;
        pairs.from[index] = source.bytes()[end..].as_ptr().cast();
        pairs.to[index] = bucket.bytes_mut()[end..].as_mut_ptr().cast();
        pairs.bytes[index] = len as u64;
        end += len;
    }
    launch!(library, "copy_many", PAIRS as u32, CopyPairs: pairs);
    assert_eq!(bucket.bytes()[..end], source.bytes()[..end]);
    assert!(bucket.bytes()[end..].iter().all(|byte| *byte == 0));
}

/// Returns values that include the threshold, zeros, infinity, and very small and very large numbers.
fn with_edges(len: usize, seed: usize) -> Buffer {
    let mut buffer = pattern(DType::F32, len, seed, |v| v);
    let edges = [0.5, -0.5, 0.0, -0.0, f32::INFINITY, 1e-40, f32::MAX];
    let values: &mut [f32] = bytemuck::cast_slice_mut(buffer.bytes_mut());
    values.iter_mut().skip(seed).step_by(11).zip(edges.into_iter().cycle()).for_each(|(value, edge)| *value = edge);
    buffer
}

#[test]
fn codes_and_residuals_have_the_references_bits() {
    let Some((library, _folder)) = build(2) else { return };
    let operations = [
        ("2bit", 16, Operation::Quantise2 { threshold: 0.5 }, Operation::AddDequantised2 { threshold: 0.5 }),
        ("1bit", 32, Operation::Quantise1 { threshold: 0.5 }, Operation::AddDequantised1),
    ];
    for (name, per_word, quantise, add) in operations {
        for len in LENGTHS {
            let [gradient, mut residual, mut sum] = [1, 2, 3].map(|seed| with_edges(len, seed));
            let reads = copies(&[Buffer::copy_of(gradient.bytes()), Buffer::copy_of(residual.bytes())]);
            let wanted = compute(&quantise, reads, &[]).unwrap();
            let mut codes = pattern(DType::U8, len.div_ceil(per_word) * 4, 9, |v| v);
            let (kernel, many) = (format!("quantise_{name}"), len as u64);
            launch!(library, kernel, 1, *mut c_void: to(&mut codes), *mut c_void: to(&mut residual), *const c_void: from(&gradient), f32: 0.5, u64: many);
            assert_eq!(codes.bytes(), wanted[0].bytes(), "{name} codes of {len}");
            assert_eq!(residual.bytes(), wanted[1].bytes(), "{name} residual of {len}");
            let wanted =
                compute(&add, copies(&[Buffer::copy_of(codes.bytes()), Buffer::copy_of(sum.bytes())]), &[]).unwrap();
            let kernel = format!("add_dequantised_{name}");
            if per_word == 16 {
                launch!(library, kernel, 1, *mut c_void: to(&mut sum), *const c_void: from(&codes), f32: 0.5, u64: many);
            } else {
                launch!(library, kernel, 1, *mut c_void: to(&mut sum), *const c_void: from(&codes), u64: many);
            }
            assert_eq!(sum.bytes(), wanted[0].bytes(), "{name} sum of {len}");
        }
    }
}

#[test]
fn decoded_sums_have_the_references_bits() {
    let Some((library, _folder)) = build(2) else { return };
    for codec in [Codec::TwoBit { threshold: 0.3 }, Codec::OneBit { threshold: 0.5 }] {
        for (len, count) in LENGTHS.into_iter().flat_map(|len| [1, 2, 7, 300].map(|count| (len, count))) {
            // Codes are random. A code that no worker sends counts as zero.
            let codes: Vec<Buffer> =
                (0..count).map(|seed| pattern(DType::U8, codec.code_bytes(len), seed, |v| v * 9.0)).collect();
            let mut sums = Buffer::zeroed(codec.sum_bytes(len, count));
            codec.sum(&codes.iter().map(Buffer::bytes).collect::<Vec<_>>(), len, sums.bytes_mut());
            let SumFormat { bits, factor, unit } = codec.stored(count).unwrap();
            let mut values = Buffer::zeroed(len * 4);
            launch!(library, "decode_sum", 1, *mut c_void: to(&mut values), *const c_void: from(&sums), u32: bits as u32, i32: factor, i32: count as i32, f32: unit, u64: len as u64);
            let wanted = compute(&Operation::DecodeSum { codec, count }, vec![sums], &[len * 4]).unwrap();
            assert_eq!(values.bytes(), wanted[0].bytes(), "{len} sums of {count} codes by {codec:?}");
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Step([f64; 8]);

#[test]
fn updates_have_the_hosts_bits() {
    let Some((library, _folder)) = build(3) else { return };
    for rule in Rule::EXAMPLES {
        for (dtype, mastered) in [
            (DType::F32, false),
            (DType::F64, false),
            (DType::F16, false),
            (DType::BF16, false),
            (DType::F16, true),
            (DType::BF16, true),
        ] {
            for updates in [0, 5] {
                let optimizer: Arc<Optimizer> =
                    Arc::new(format!("{rule},multi_precision={}", u8::from(mastered)).parse().unwrap());
                one_update(&library, &optimizer, dtype, mastered, updates);
            }
        }
    }
}

fn one_update(library: &Library, optimizer: &Arc<Optimizer>, dtype: DType, mastered: bool, updates: u64) {
    let (len, real) = (1003, if dtype == DType::F64 { DType::F64 } else { DType::F32 });
    let fill =
        |seed| if updates == 0 { Buffer::zeroed(len * real.size_bytes()) } else { pattern(real, len, seed, f64::abs) };
    let mut buffers = vec![pattern(dtype, len, 4, |v| v / 8.0), pattern(dtype, len, 5, |v| v / 8.0)];
    buffers.extend((0..optimizer.slots(dtype)).map(fill));
    let operation = Operation::Update { optimizer: Arc::clone(optimizer), dtype, updates };
    let wanted = compute(&operation, copies(&buffers), &[]).unwrap();
    let (kind, step) = optimizer.step_on_device(updates + 1);
    let step = Step(step);
    let pointers: Vec<*mut c_void> = buffers.iter_mut().map(to).collect();
    let (slots, master) = pointers[2..].split_at(pointers.len() - 2 - usize::from(mastered));
    let slot = |index: usize| slots.get(index).copied().unwrap_or(std::ptr::null_mut());
    if let [master] = master {
        let name = format!("update_{dtype}_master");
        launch!(library, name, 1, *mut c_void: pointers[1], *mut c_void: pointers[0], *mut c_void: slot(0), *mut c_void: slot(1), *mut c_void: slot(2), *mut c_void: *master, Step: step, i32: kind, i32: i32::from(updates == 0), u64: len as u64);
    } else {
        let name = format!("update_{dtype}");
        launch!(library, name, 1, *mut c_void: pointers[1], *mut c_void: pointers[0], *mut c_void: slot(0), *mut c_void: slot(1), *mut c_void: slot(2), Step: step, i32: kind, u64: len as u64);
    }
    for (index, (got, wanted)) in buffers[1..].iter().zip(&wanted).enumerate() {
        assert!(got.bytes() == wanted.bytes(), "{optimizer:?} on {dtype} after {updates} updates: buffer {index}");
    }
}
