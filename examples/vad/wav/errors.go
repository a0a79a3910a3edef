package wav

import "errors"

// Errors of [Decode] and [ReadFile], wrapped with what was found.
var (
	// ErrFormat is a file that is not WAV at all.
	ErrFormat = errors.New("not a WAV file")
	// ErrTruncated is a file that ends before what its sizes announce.
	ErrTruncated = errors.New("WAV file is cut off")
	// ErrChunk is a chunk that is missing, in the wrong order, or of an impossible size.
	ErrChunk = errors.New("bad WAV chunk")
	// ErrEncoding is audio that this package does not read: not 16-bit PCM, or more than one channel.
	ErrEncoding = errors.New("unsupported WAV encoding")
	// ErrSampleRate means that the sample rate is not the expected one.
	ErrSampleRate = errors.New("unexpected WAV sample rate")
)
