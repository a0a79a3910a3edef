package keeper

import "time"

// repeated selects the occurrences of a repeated error that are logged: the first, those with another text, and one a
// minute. The zero value is ready to use.
type repeated struct {
	text string
	at   time.Time
}

// repeatInterval is the interval at which the same error is logged.
const repeatInterval = time.Minute

// report reports whether the error is to be logged.
func (r *repeated) report(err error) bool {
	if err.Error() == r.text && time.Since(r.at) < repeatInterval {
		return false
	}
	r.text, r.at = err.Error(), time.Now()
	return true
}

// reset makes the next error be logged. It reports whether one was logged before.
func (r *repeated) reset() bool {
	was := r.text != ""
	r.text = ""
	return was
}
