//! Enums whose variants have names.

/// Declares an enum with a name for each variant. Each stands in one place, so that none can be missing from
/// `ALL`, from what is printed or from what is read.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$attribute])*
        pub enum $type { $($(#[$doc])* $variant,)+ }

        impl $type {
            /// Every one, in the order of the documentation.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// The name.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }

            /// The one of this name. Names are strict.
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
