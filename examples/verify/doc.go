// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package verify checks the rendered recipes with the schemas and parsers of their
// readers: cloud-init's JSON schemas, Talos' configuration loader, and containerd's
// configuration of its CRI plugin. It applies Ignition configurations to a directory with the
// program that runs in the guest, built from its Go module. Kubelet configurations are checked
// in internal/bootdata.
//
// The files in schemas are cloud-init's, copyright Canonical Ltd. and contributors, from
// release 25.1.4 under the Apache License 2.0.
package verify
