package transfer

import (
	"crypto/rand"
	"encoding/hex"
)

// NewID returns 128 random bits in hexadecimal, which identify a server, an object or memory and cannot be guessed.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
