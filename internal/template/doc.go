// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package template makes Templates from image URLs and keeps them: on every Host,
// or once where a shared storage serves all of them.
//
// Pure functions say what should be where (Places), what is there (Ours) and which
// Template serves which Host (Serving). The Provider does what is missing on one Host
// at a time: each run looks at what is true and goes on from there, so that it can
// end at any call and be taken up by any process. Nothing is changed or destroyed
// before its ownership mark was read back and matched.
package template
