// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package perf_test

// raceDetector slows everything down unevenly, so times are not checked.
const raceDetector = true
