package admission

import "crypto/subtle"

// SameSecret reports whether a presented secret is the right one. Its duration does not depend on how much of the
// secret is correct.
func SameSecret[S ~string | ~[]byte](presented, right S) bool {
	return subtle.ConstantTimeCompare([]byte(presented), []byte(right)) == 1
}
