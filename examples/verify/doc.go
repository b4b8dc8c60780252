// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package verify holds the rendered recipes against what their readers accept:
// cloud-init's schemas and Talos' own loader. Ignition and the kubelet's types are
// checked where the recipes are rendered.
//
// The files in schemas are cloud-init's, copyright Canonical Ltd. and others, taken
// from release 25.1.4 under the Apache License 2.0.
package verify
