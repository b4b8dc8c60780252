// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package pvesim_test

// raceDetector says that limits on time do not hold: the race detector makes everything slower.
const raceDetector = true
