//! The reduction operators of collectives.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::named::named;
use crate::{Error, did_you_mean};

named! {
    /// The reduction operator of a collective.
    ///
    /// ```
    /// # use ringpull_base as ringpull;
    /// assert_eq!("max".parse(), Ok(ringpull::Reduction::Max));
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Reduction {
        /// Their sum. Integers wrap.
        #[default]
        Sum = "sum",
        /// Their sum, divided by the number of ranks. Integers are rounded towards zero.
        Average = "average",
        /// The least of them; NaN if one is.
        Min = "min",
        /// The greatest of them; NaN if one is.
        Max = "max",
        /// Their product. Integers wrap.
        Product = "product",
    }
}

impl FromStr for Reduction {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Reduction::of_name(name).ok_or_else(|| {
            let names = Reduction::ALL.map(Reduction::name);
            Error::argument(
                format!("unknown reduction {name:?}{}", did_you_mean(name, names)),
                format!("the reductions are {}", names.join(", ")),
            )
        })
    }
}
