// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package perf_test

// raceDetector is off, so times are checked.
const raceDetector = false
