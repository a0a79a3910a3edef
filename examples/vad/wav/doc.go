// Package wav reads and writes WAV files of speech: 16-bit PCM, one channel, any sample rate that the caller expects.
//
// The format is RIFF (Microsoft and IBM, "Multimedia Programming Interface and Data Specifications 1.0", 1991) with a
// "fmt " and a "data" chunk, and the WAVE_FORMAT_EXTENSIBLE form of "fmt ". Other chunks are skipped.
package wav
