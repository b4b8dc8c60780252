// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package backoff_test

import (
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
)

func TestExponential(t *testing.T) {
	t.Parallel()
	limited := backoff.Exponential{Initial: 2 * time.Second, Max: 30 * time.Second}
	unlimited := backoff.Exponential{Initial: time.Minute}
	for name, test := range map[string]struct {
		backoff backoff.Exponential
		earlier int
		want    time.Duration
	}{
		"first_failure":     {limited, 0, 2 * time.Second},
		"negative_count":    {limited, -1, 2 * time.Second},
		"second_failure":    {limited, 1, 4 * time.Second},
		"below_the_limit":   {limited, 3, 16 * time.Second},
		"at_the_limit":      {limited, 4, 30 * time.Second},
		"many_failures":     {limited, math.MaxInt, 30 * time.Second},
		"initial_over_max":  {backoff.Exponential{Initial: time.Hour, Max: time.Minute}, 0, time.Minute},
		"unlimited":         {unlimited, 10, 1024 * time.Minute},
		"overflow":          {unlimited, 100, math.MaxInt64},
		"exact_power_of_2":  {backoff.Exponential{Initial: time.Second, Max: 8 * time.Second}, 3, 8 * time.Second},
		"odd_limit_reached": {backoff.Exponential{Initial: 1, Max: 3}, 2, 3},
	} {
		NewWithT(t).Expect(test.backoff.Delay(test.earlier)).To(Equal(test.want), name)
	}
}
