// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package pvesim_test

// raceDetector reports whether the race detector is enabled. Time limits do not apply then.
const raceDetector = true
