// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmconfig turns a NodeClass and a launch plan into the one configuration
// change that makes a VM of a clone. Its functions are pure: they read
// configurations and return changes, and call neither Proxmox nor Kubernetes. Package
// instance/launch fills Desired and sends the change.
//
// Other writers of VM configurations are proxmox.Root (options that only root may set),
// instance.Updater (in-place updates) and package template (templates).
package vmconfig
