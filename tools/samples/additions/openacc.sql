-- OpenACC tables, as exports of nsys 2022 declare them.
;
CREATE TABLE CUPTI_ACTIVITY_KIND_OPENACC_DATA (
    -- OpenACC data events collected using CUPTI.

    start                       INTEGER   NOT NULL,                    -- Event start timestamp (ns).
    end                         INTEGER   NOT NULL,                    -- Event end timestamp (ns).
    nameId                      INTEGER   NOT NULL   REFERENCES StringIds(id), -- StringId of the event name.
    globalTid                   INTEGER,                               -- Serialized GlobalId.
    eventKind                   INTEGER   NOT NULL,                    -- CUPTI OpenACC event kind. See enum CUpti_OpenAccEventKind.
    DeviceType                  INTEGER   NOT NULL,                    -- Device type. See enum acc_device_t.
    lineNo                      INTEGER   NOT NULL,                    -- Line number of the directive or program construct.
    cuDeviceId                  INTEGER   NOT NULL,                    -- CUDA device ID. Valid only if deviceType is acc_device_nvidia.
    cuContextId                 INTEGER   NOT NULL,                    -- CUDA context ID. Valid only if deviceType is acc_device_nvidia.
    cuStreamId                  INTEGER   NOT NULL,                    -- CUDA stream ID. Valid only if deviceType is acc_device_nvidia.
    srcFile                     INTEGER   REFERENCES StringIds(id),    -- StringId of the source file name or path.
    funcName                    INTEGER   REFERENCES StringIds(id),    -- StringId of the function in which the event occurred.
    bytes                       INTEGER,                               -- Number of bytes.
    varName                     INTEGER   REFERENCES StringIds(id)     -- StringId of the variable name.
)
;
CREATE TABLE CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH (
    -- OpenACC launch events collected using CUPTI.

    start                       INTEGER   NOT NULL,                    -- Event start timestamp (ns).
    end                         INTEGER   NOT NULL,                    -- Event end timestamp (ns).
    nameId                      INTEGER   NOT NULL   REFERENCES StringIds(id), -- StringId of the event name.
    globalTid                   INTEGER,                               -- Serialized GlobalId.
    eventKind                   INTEGER   NOT NULL,                    -- CUPTI OpenACC event kind. See enum CUpti_OpenAccEventKind.
    DeviceType                  INTEGER   NOT NULL,                    -- Device type. See enum acc_device_t.
    lineNo                      INTEGER   NOT NULL,                    -- Line number of the directive or program construct.
    cuDeviceId                  INTEGER   NOT NULL,                    -- CUDA device ID. Valid only if deviceType is acc_device_nvidia.
    cuContextId                 INTEGER   NOT NULL,                    -- CUDA context ID. Valid only if deviceType is acc_device_nvidia.
    cuStreamId                  INTEGER   NOT NULL,                    -- CUDA stream ID. Valid only if deviceType is acc_device_nvidia.
    srcFile                     INTEGER   REFERENCES StringIds(id),    -- StringId of the source file name or path.
    funcName                    INTEGER   REFERENCES StringIds(id),    -- StringId of the function in which the event occurred.
    numGangs                    INTEGER,                               -- Number of gangs created for this kernel launch.
    numWorkers                  INTEGER,                               -- Number of workers created for this kernel launch.
    vectorLength                INTEGER,                               -- Number of vector lanes created for this kernel launch.
    kernelName                  INTEGER   REFERENCES StringIds(id)     -- StringId of the kernel name.
)
;
CREATE TABLE CUPTI_ACTIVITY_KIND_OPENACC_OTHER (
    -- OpenACC other events collected using CUPTI.

    start                       INTEGER   NOT NULL,                    -- Event start timestamp (ns).
    end                         INTEGER   NOT NULL,                    -- Event end timestamp (ns).
    nameId                      INTEGER   NOT NULL   REFERENCES StringIds(id), -- StringId of the event name.
    globalTid                   INTEGER,                               -- Serialized GlobalId.
    eventKind                   INTEGER   NOT NULL,                    -- CUPTI OpenACC event kind. See enum CUpti_OpenAccEventKind.
    DeviceType                  INTEGER   NOT NULL,                    -- Device type. See enum acc_device_t.
    lineNo                      INTEGER   NOT NULL,                    -- Line number of the directive or program construct.
    cuDeviceId                  INTEGER   NOT NULL,                    -- CUDA device ID. Valid only if deviceType is acc_device_nvidia.
    cuContextId                 INTEGER   NOT NULL,                    -- CUDA context ID. Valid only if deviceType is acc_device_nvidia.
    cuStreamId                  INTEGER   NOT NULL,                    -- CUDA stream ID. Valid only if deviceType is acc_device_nvidia.
    srcFile                     INTEGER   REFERENCES StringIds(id),    -- StringId of the source file name or path.
    funcName                    INTEGER   REFERENCES StringIds(id)     -- StringId of the function in which the event occurred.
)
