//! The instructions of the codecs' loops.

/// The instructions of a codec's loop. Every level gives the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The instructions of every processor.
    Scalar,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and BMI2 in addition.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The best that this processor has.
    #[cfg(target_arch = "x86_64")]
    pub fn best() -> Self {
        // Each question is answered once and remembered by the standard library.
        if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")) {
            return Level::Scalar;
        }
        let wide = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("bmi2");
        if wide { Level::Avx512 } else { Level::Avx2 }
    }

    /// The best that this processor has.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn best() -> Self {
        Level::Scalar
    }

    /// Returns every level of this processor, beginning with the scalar one.
    pub fn available() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let all = [Level::Scalar, Level::Avx2, Level::Avx512];
        #[cfg(not(target_arch = "x86_64"))]
        let all = [Level::Scalar];
        all.into_iter().filter(|level| *level <= Level::best()).collect()
    }
}
