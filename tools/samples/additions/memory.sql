-- Tables of memory usage and of page faults, with the columns of NVIDIA's "SQLite Schema Reference".
;
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (
    start                       INTEGER    NOT NULL,
    globalPid                   INTEGER    NOT NULL,
    deviceId                    INTEGER    NOT NULL,
    contextId                   INTEGER    NOT NULL,
    address                     INTEGER    NOT NULL,
    pc                          INTEGER    NOT NULL,
    bytes                       INTEGER    NOT NULL,
    memKind                     INTEGER    NOT NULL,
    memoryOperationType         INTEGER    NOT NULL,
    name                        TEXT,
    correlationId               INTEGER,
    streamId                    INTEGER,
    localMemoryPoolAddress      INTEGER,
    localMemoryPoolReleaseThreshold INTEGER,
    localMemoryPoolSize         INTEGER,
    localMemoryPoolUtilizedSize INTEGER,
    importedMemoryPoolAddress   INTEGER,
    importedMemoryPoolProcessId INTEGER
)
;
CREATE TABLE CUDA_GPU_MEMORY_POOL_EVENTS (
    start                       INTEGER    NOT NULL,
    globalPid                   INTEGER    NOT NULL,
    deviceId                    INTEGER    NOT NULL,
    address                     INTEGER    NOT NULL,
    operationType               INTEGER    NOT NULL,
    poolType                    INTEGER    NOT NULL,
    correlationId               INTEGER,
    minBytesToKeep              INTEGER,
    localMemoryPoolReleaseThreshold INTEGER,
    localMemoryPoolSize         INTEGER,
    localMemoryPoolUtilizedSize INTEGER
)
;
CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS (
    start                       INTEGER    NOT NULL,
    globalPid                   INTEGER    NOT NULL,
    address                     INTEGER    NOT NULL,
    originalFaultPc             INTEGER,
    CpuInstruction              INTEGER    NOT NULL,
    module                      INTEGER    NOT NULL,
    unresolvedFaultPc           INTEGER,
    sourceFile                  INTEGER,
    sourceLine                  INTEGER
)
;
CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS (
    start                       INTEGER    NOT NULL,
    end                         INTEGER    NOT NULL,
    globalPid                   INTEGER    NOT NULL,
    deviceId                    INTEGER    NOT NULL,
    address                     INTEGER    NOT NULL,
    numberOfPageFaults          INTEGER    NOT NULL,
    faultAccessType             INTEGER    NOT NULL
)
