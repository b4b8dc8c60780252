// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples holds the example manifests, so that tests and the demo use
// exactly what users read.
package examples

import "embed"

// Files are the manifests, one directory per recipe.
//
//go:embed kubeadm/*.yaml templates/*.yaml
var Files embed.FS
