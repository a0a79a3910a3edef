package transfer

import (
	"crypto/rand"
	"encoding/hex"
)

// NewID returns 128 random bits in hexadecimal: the name of a server, an object or a piece of memory, which nobody can
// guess.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
