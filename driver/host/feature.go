package host

// Feature is one thing that sharing host memory builds on or gains from.
type Feature struct {
	// Name is what it is, such as "memfd" or "huge pages".
	Name string
	// Detail is what was found, in a few words, such as a limit's value; it may be empty.
	Detail string
	// Required reports whether sharing host memory needs it. Without an optional feature sharing works, but slower or
	// with a lower bound.
	Required bool
	// Bytes is the amount that Detail is about, such as memory that is available; 0 where it is about none.
	Bytes int64
	// Err is nil where it is there, else the reason in one sentence.
	Err error
	// Advice is what to do where Err is not nil, in a few words; it may be empty.
	Advice string
}
