// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// numeric decodes numbers and booleans, also if they are quoted as in some releases.
type numeric float64

func (n *numeric) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `"`)
	switch text {
	case "null", "", "false":
		*n = 0
		return nil
	case "true":
		*n = 1
		return nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(value) {
		return fmt.Errorf("found %s, want a number", data)
	}
	*n = numeric(value)
	return nil
}

// whole returns the number without its fraction. If it does not fit, the result is the
// nearest one that does: Go leaves the conversion undefined.
func (n numeric) whole() int64 {
	switch {
	case n >= math.MaxInt64:
		return math.MaxInt64
	case n <= math.MinInt64:
		return math.MinInt64
	}
	return int64(n)
}

func (n numeric) isSet() bool { return n != 0 }
