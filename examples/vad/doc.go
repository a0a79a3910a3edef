// Command vad detects speech in a clip. It runs Silero VAD in plain Go on weights that another process owns: it
// attaches them in place, so any number of such processes share one copy.
//
//	vad --socket S --name NAME clip.wav       attaches to the model NAME of the owner on S
//	vad --weights FILE clip.wav               starts an owner for the weights in FILE
//
// It prints one probability for every 512 samples (32 ms), one on each line; with --json, an array. The clip is WAV: 16
// kHz, 16 bit, mono.
package main
