package host

// Feature is a property of the system that sharing host memory requires or benefits from.
type Feature struct {
	// Name is its name, such as "memfd" or "huge pages".
	Name string
	// Detail is what was found, in a few words, such as a limit's value; it may be empty.
	Detail string
	// Required reports whether sharing host memory needs it. Without an optional feature sharing works, but slower or
	// with a lower limit.
	Required bool
	// Bytes is the amount in Detail, such as available memory; 0 if it has none.
	Bytes int64
	// Err is nil if the feature is available, otherwise the reason in one sentence.
	Err error
	// Advice is the remedy if Err is not nil, in a few words; it may be empty.
	Advice string
}
