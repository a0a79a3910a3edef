package models

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// digestHashes are the hash functions of RFC 9530 that are verified. Others are ignored.
var digestHashes = map[string]func() hash.Hash{"sha-256": sha256.New, "sha-512": sha512.New}

// announced is a digest that the body of a request must have.
type announced struct {
	field, algorithm string
	want             []byte
}

// announcedDigests returns the digests in a request's fields of RFC 9530. A field is a dictionary: its lines are joined,
// and the last value of an algorithm counts.
func announcedDigests(h http.Header) (all []announced, err error) {
	for _, field := range []string{"Repr-Digest", "Content-Digest"} {
		found := map[string]announced{}
		for member := range strings.SplitSeq(strings.Join(h.Values(field), ","), ",") {
			name, value, _ := strings.Cut(strings.Trim(member, " \t"), "=")
			if digestHashes[name] == nil {
				continue
			}
			value, _, _ = strings.Cut(value, ";") // parameters
			value = strings.TrimRight(value, " \t")
			text, opened := strings.CutPrefix(value, ":")
			text, closed := strings.CutSuffix(text, ":")
			digest, err := base64.StdEncoding.DecodeString(text)
			if !opened || !closed || err != nil || len(digest) != digestHashes[name]().Size() {
				return nil, fmt.Errorf("%w: %s has no %s between colons in base64", ErrParams, field, name)
			}
			found[name] = announced{field, name, digest}
		}
		for _, name := range []string{"sha-256", "sha-512"} {
			if one, is := found[name]; is {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

// verifier computes the digests of what is read from a body that are wanted.
type verifier struct {
	io.Reader
	want    []announced
	digests map[string]hash.Hash // by algorithm
}

func newVerifier(r io.Reader, want ...announced) *verifier {
	v := &verifier{Reader: r, want: want, digests: map[string]hash.Hash{}}
	for _, one := range want {
		if v.digests[one.algorithm] == nil {
			v.digests[one.algorithm] = digestHashes[one.algorithm]()
			v.Reader = io.TeeReader(v.Reader, v.digests[one.algorithm])
		}
	}
	return v
}

// check returns an error if the bytes differ from a wanted digest. It is called after the last byte was read.
func (v *verifier) check() error {
	for _, one := range v.want {
		if sum := v.digests[one.algorithm].Sum(nil); !bytes.Equal(sum, one.want) {
			return fmt.Errorf("%w: %w: its %s is %s, not that of %s", ErrParams, modelwire.ErrFile, one.algorithm, hex.EncodeToString(sum), one.field)
		}
	}
	return nil
}
