//! Writes by chance, beside cuts, lost links and full memory; what is told must be true, and members equal at the end.
