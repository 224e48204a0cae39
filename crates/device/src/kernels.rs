//! The kernels in CUDA C, their names, and the options of their compilation. Each computes its operation as
//! `reference` defines it.

use ringpull_base::DType;

/// The options of NVRTC for every kernel, beside the architecture: no fused multiply-add, so that updates
/// give the host's bits.
pub const OPTIONS: [&str; 2] = ["--fmad=false", "--std=c++17"];

/// Compute capabilities, in ascending order. The tests compile for them, and they are used for a GPU that
/// NVRTC does not know.
pub const ARCHITECTURES: [u32; 3] = [75, 80, 90];

/// The text before each source.
const ELEMENTS: &str = include_str!("kernels/elements.cu");

/// A translation unit: a name, the source, and the kernels in it.
pub struct TranslationUnit {
    /// Its name, for messages.
    pub name: &'static str,
    source: &'static str,
    /// The kernels that can be launched.
    pub kernels: &'static [&'static str],
}

impl TranslationUnit {
    /// The whole source.
    pub fn source(&self) -> String {
        format!("{ELEMENTS}\n{}", self.source)
    }
}

/// All kernels.
pub const UNITS: [TranslationUnit; 4] = [
    TranslationUnit {
        name: "sum.cu",
        source: include_str!("kernels/sum.cu"),
        kernels: &["sum_f32", "sum_f64", "sum_f16", "sum_bf16", "sum_i8", "sum_u8", "sum_i32", "sum_i64"],
    },
    TranslationUnit { name: "copy.cu", source: include_str!("kernels/copy.cu"), kernels: &["copy_many"] },
    TranslationUnit {
        name: "codec.cu",
        source: include_str!("kernels/codec.cu"),
        kernels: &["quantise_2bit", "quantise_1bit", "add_dequantised_2bit", "add_dequantised_1bit", "decode_sum"],
    },
    TranslationUnit {
        name: "update.cu",
        source: include_str!("kernels/update.cu"),
        kernels: &["update_f32", "update_f64", "update_f16", "update_bf16", "update_f16_master", "update_bf16_master"],
    },
];

/// The most buffers of one launch of a sum.
pub const ADDENDS: usize = 8;

/// The most copies of one launch of `copy_many`.
pub const PAIRS: usize = 32;

/// Returns the name of the kernel that sums buffers of `dtype`.
pub fn sum(dtype: DType) -> String {
    format!("sum_{dtype}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_that_is_named_is_in_its_source() {
        for unit in &UNITS {
            for kernel in unit.kernels {
                let stem = kernel.split('_').next().unwrap_or_default();
                assert!(unit.source().contains(&format!("void {stem}_")), "{kernel} in {}", unit.name);
            }
        }
        for dtype in DType::ALL {
            assert!(UNITS[0].kernels.contains(&sum(dtype).as_str()), "{dtype}");
        }
    }
}
