package host

// Feature is one thing that sharing host memory builds on or gains from.
type Feature struct {
	// Name is what it is, such as "memfd" or "huge pages".
	Name string
	// Detail is what was found, in a few words, such as a limit's value; it may be empty.
	Detail string
	// Required tells whether sharing host memory needs it. Without an optional feature sharing works, but slower or
	// with a lower bound.
	Required bool
	// Err is nil where it is there, else the reason in one sentence and, where there is one, the remedy.
	Err error
}
