// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package pvesim_test

// raceDetector is true when the race detector slows the tests down, so time limits do not apply.
const raceDetector = true
