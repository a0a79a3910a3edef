package demonet

import (
	"encoding/binary"
	"math"
)

// generator generates weights with SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators",
// 2014), which needs no table and gives the same numbers on every machine.
type generator struct {
	state uint64
	scale float32
	ones  bool
}

// fill fills b with little-endian float32 numbers. Its length must be a multiple of 4.
func (g *generator) fill(b []byte) {
	for ; len(b) >= elementLen; b = b[elementLen:] {
		binary.LittleEndian.PutUint32(b, math.Float32bits(g.next()))
	}
}

// next returns a number from -scale to scale, or 1.
func (g *generator) next() float32 {
	if g.ones {
		return 1
	}
	return g.scale * unit(splitmix(&g.state))
}

// unit maps the upper 24 bits, the precision of a float32, to -1 to 1.
func unit(bits uint64) float32 { return float32(int32(bits>>40)-1<<23) / (1 << 23) }

func splitmix(state *uint64) uint64 {
	*state += 0x9E3779B97F4A7C15
	z := *state
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
