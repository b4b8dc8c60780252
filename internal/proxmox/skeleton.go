// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Config is the cloud config: the Clusters that the provider works with.
type Config struct {
	Features Features
	Clusters []ClusterConfig
}

// Features are switches that the cloud config shares with other Proxmox controllers.
type Features struct {
	Provider string
}

// ClusterConfig says how to reach one Cluster.
type ClusterConfig struct {
	Region          string
	URLs            []string
	Insecure        bool
	CA              string // PEM
	Fingerprints    []string
	TokenID         string
	TokenSecret     string
	TokenIDFile     string
	TokenSecretFile string
	Username        string
	Password        string
}

// Options are what a client needs beside its Cluster's config. The zero value works.
type Options struct {
	Registerer      prometheus.Registerer
	Log             logr.Logger
	DialTimeout     time.Duration
	ResponseTimeout time.Duration
}

// LoadConfig reads the cloud config.
func LoadConfig(path string) (Config, error) { return Config{}, fmt.Errorf("reading %s", path) }

// New makes the client of one Cluster.
func New(cfg ClusterConfig, _ Options) (Client, error) {
	return nil, fmt.Errorf("making the client of %s, %w", cfg.Region, errors.ErrUnsupported)
}

// Check tells in one line what keeps the client from working with its Cluster.
func Check(ctx context.Context, client Client) error {
	_, err := client.Version(ctx)
	return err
}

// Succeeded tells whether the task ended well.
func (s TaskStatus) Succeeded() bool {
	return !s.Running && (s.Exit == "OK" || strings.HasPrefix(s.Exit, "WARNINGS: "))
}

func taskError(s TaskStatus) error { return fmt.Errorf("%s: %w", s.Exit, ErrFailed) }

// Durations learns how long tasks take.
type Durations struct{}

// WaitOptions steer WaitTask.
type WaitOptions struct {
	Durations *Durations
	Key       string
	Clock     clock.WithTicker
}

// WaitTask waits for a task's end.
func WaitTask(ctx context.Context, client Client, task UPID, _ WaitOptions) (TaskStatus, error) {
	return client.Task(ctx, task)
}
