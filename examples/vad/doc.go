// Command vad tells where somebody speaks in a clip. It runs Silero VAD in plain Go on weights that another process
// owns: it attaches to them in place, so any number of such processes share one copy.
//
//	vad --socket S --name NAME clip.wav       attaches to the model NAME of the owner on S
//	vad --weights FILE clip.wav               starts an owner of its own for the weights in FILE
//
// It prints one probability a line, one for every 512 samples (32 ms); with --json, an array. The clip is WAV: 16 kHz,
// 16 bit, mono.
package main
