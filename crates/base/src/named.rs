//! Enums whose variants have names.

/// Declares an enum with a name for each variant. Each variant is listed only once, so that none can be
/// missing from `ALL`, from printing or from parsing.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$attribute])*
        pub enum $type { $($(#[$doc])* $variant,)+ }

        impl $type {
            /// Every variant, in the order of the documentation.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// The variant's name.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }

            /// Returns the variant with this name. Names are strict.
            pub fn of_name(name: &str) -> Option<Self> {
                match name { $($name => Some($type::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.pad(self.name())
            }
        }
    };
}

pub(crate) use named;
