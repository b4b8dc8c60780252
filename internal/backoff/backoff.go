// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backoff calculates delays that grow with the number of failures, and holds back what failed.
package backoff

import (
	"math"
	"time"
)

// Exponential is a delay that doubles with each failure.
type Exponential struct {
	// Initial is the delay after the first failure.
	Initial time.Duration
	// Max limits the delay; 0 = unlimited.
	Max time.Duration
}

// Delay returns the delay after the given number of earlier failures: Initial after
// the first failure (0 earlier ones), twice that after the second, up to Max.
func (e Exponential) Delay(earlier int) time.Duration {
	limit := e.Max
	if limit == 0 {
		limit = math.MaxInt64
	}
	delay := e.Initial
	for range earlier {
		if delay > limit/2 {
			return limit
		}
		delay *= 2
	}
	return min(delay, limit)
}
