// Package cu is the CUDA driver API.
package cu
